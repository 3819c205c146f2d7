// RankWriter: carries out one rank's part of a save: lays out its files, writes them, and gives them their final names
// (steps 2 and 3 of transfer/commit.cc).
//
// One thread at a time. The sources are views: their owners outlive the call.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpointer/save_messages.h"
#include "storage/storage.h"
#include "transfer/file_image.h"
#include "transfer/image_writer.h"
#include "transfer/rank_files.h"

namespace cairn::checkpointer {

// Who writes, and into what.
struct RankPart {
  transfer::SaveTicket ticket;
  std::uint32_t rank = 0;
  std::uint32_t file_count = 0;  // of the whole save; 0 if nobody can say yet
  bool file_per_item = false;
};

class RankWriter {
 public:
  // `storage` outlives it.
  RankWriter(storage::Storage& storage, const RankPart& part)
      : storage_(storage), part_(part), files_(storage, part.ticket.identity) {}

  // Call it once.
  Result<void> write(std::span<const transfer::ItemSource> sources, const transfer::WriteOptions& options);

  // What has been written: names, and what there is to say of each file.
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<WrittenFile>& written() const { return written_; }
  std::uint64_t bytes_written() const;
  // Where each source lies; `file` counts in names().
  const std::vector<ItemLocation>& places() const { return places_; }
  // Whose the files are from now on.
  transfer::RankFiles& files() { return files_; }

 private:
  Result<std::vector<transfer::FileImage>> lay_out(std::span<const transfer::ItemSource> sources);

  storage::Storage& storage_;
  RankPart part_;
  transfer::RankFiles files_;
  std::vector<std::string> names_;
  std::vector<WrittenFile> written_;
  std::vector<ItemLocation> places_;
};

}  // namespace cairn::checkpointer
