// SaveMember: what a rank has in an asynchronous save, whether it coordinates or follows: the storage, its place, its
// marks, its progress, and its files with steps 3 and 4 of rank_save.cc.
//
// One thread at a time, but for report().
#pragma once

#include <cairn/durability.h>
#include <cairn/result.h>
#include <cairn/save_deadlines.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "commit/lease.h"
#include "commit/progress_tracker.h"
#include "commit/rank_files.h"
#include "commit/save_fence.h"
#include "commit/save_marks.h"
#include "commit/save_ticket.h"
#include "data_file/image_writer.h"
#include "storage/operation_watch.h"
#include "storage/storage.h"

namespace cairn::commit {

// A rank's place among those that save group.
struct RankPlace {
  std::uint32_t rank = 0;   // in the names of its files and marks
  std::uint32_t count = 1;  // of ranks; 1: nobody to meet
  std::uint32_t coordinator = 0;

  bool is_coordinator() const { return count == 1 || rank == coordinator; }
};

struct RankSaveOptions {
  data_file::WriteOptions write;
  // A rank that gives no sign of life, or gets nowhere, for longer is lost; so is one that never came.
  SaveDeadlines deadlines;
  // Asked before the step after which the save may be committed; null: the save is never given up from outside.
  SaveFence* fence = nullptr;
};

struct RankSaveReport {
  std::uint64_t bytes_written = 0;  // by this rank
  std::vector<std::string> warnings;
};

// While a rank writes, it looks this often whether the save has failed elsewhere.
inline constexpr std::chrono::milliseconds kNewsInterval{100};

// For the rank's SaveCoordinator or SaveFollower, which it outlives.
struct SaveMember {
  // The calls into the save's storage, which its lease tells of; null: nobody watches them. Owned by the caller too.
  using Operations = std::shared_ptr<const storage::OperationWatch>;

  SaveMember(std::unique_ptr<storage::Storage> taken_storage, const SaveTicket& given_ticket, Operations watched);

  // For a lease, which goes before this object.
  Lease::Progress report() const;
  // Steps 3 and 4. The checksums of the files' trailers.
  Result<std::vector<std::uint32_t>> write(std::vector<data_file::ImageFile> images,
                                           const data_file::WriteOptions& options);
  // Of no use any more; and a full disk has room again to say so.
  void remove_private_files();
  Error of_this_rank(Error error) const;

  std::unique_ptr<storage::Storage> storage;
  Operations operations;
  SaveTicket ticket;
  ProgressTracker progress;
  RankPlace place;
  SaveFence* fence = nullptr;  // the caller's
  SaveMarks marks;
  RankFiles files;
  std::vector<std::string> names;  // of the files of this rank
};

}  // namespace cairn::commit
