// SaveMember: the state of a rank in an asynchronous save, as coordinator or follower: the storage, the rank's place,
// marks, progress, and files, with steps 3 and 4 of rank_save.cc.
//
// One thread at a time, except report().
#pragma once

#include <cairn/options.h>
#include <cairn/result.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "commit/lease.h"
#include "commit/meeting/save_marks.h"
#include "commit/progress_tracker.h"
#include "commit/rank_files.h"
#include "commit/save_fence.h"
#include "commit/save_ticket.h"
#include "data_file/image_writer.h"
#include "storage/operation_watch.h"
#include "storage/storage.h"

namespace cairn::commit {

// A rank's place among the ranks of a save.
struct RankPlace {
  std::uint32_t rank = 0;   // in the names of the rank's files and marks
  std::uint32_t count = 1;  // of ranks; 1: no rendezvous
  std::uint32_t coordinator = 0;

  bool is_coordinator() const { return count == 1 || rank == coordinator; }
};

struct RankSaveOptions {
  data_file::WriteOptions write;
  // A rank counts as lost if its lease shows no heartbeat, or no progress, for longer, or if the rank never came.
  SaveDeadlines deadlines;
  std::function<void(std::uint64_t bytes)> written = {};  // called when this rank's files have their final names
};

struct RankSaveReport {
  std::uint64_t bytes_written = 0;  // by this rank
  std::vector<std::string> warnings;
};

// Used by the rank's SaveCoordinator or SaveFollower. The member outlives both.
struct SaveMember {
  // The calls into the save's storage, whose age the lease reports; null: the calls are not watched. The caller is a
  // second owner.
  using Operations = std::shared_ptr<const storage::OperationWatch>;

  // `given_name`: of a save of a whole directory, the name that the commit gives the directory; else empty.
  SaveMember(std::unique_ptr<storage::Storage> taken_storage, const SaveTicket& given_ticket, Operations watched,
             std::string given_name = {});

  // For a lease, which must be destroyed before this object.
  Lease::Progress report() const;
  // Steps 3 and 4. Returns the checksums of the files' trailers.
  Result<std::vector<std::uint32_t>> write(std::vector<data_file::ImageFile> images,
                                           const data_file::WriteOptions& options);
  // Removes the rank's private files after a failure, which also frees space for the failure mark.
  void remove_private_files();
  Error of_this_rank(Error error) const;

  std::unique_ptr<storage::Storage> storage;
  Operations operations;
  SaveTicket ticket;
  std::string directory_name;
  ProgressTracker progress;
  RankPlace place;
  SaveFence* fence = nullptr;                        // owned by the caller
  std::function<void(std::uint64_t bytes)> written;  // of RankSaveOptions
  SaveMarks marks;
  RankFiles files;
  std::vector<std::string> names;  // of this rank's files
};

}  // namespace cairn::commit
