// RankWriter: carries out one rank's part of a save: lays out its files, writes them, and gives them their final names
// (steps 2 and 3 of commit/save_transaction.cc).
//
// One thread at a time. The sources are views: their owners outlive write(), or the gate that it is given.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpointer/save_messages.h"
#include "commit/rank_files.h"
#include "data_file/file_image.h"
#include "data_file/image_writer.h"
#include "storage/storage.h"

namespace cairn::checkpointer {

// Who writes, and into what.
struct RankPart {
  commit::SaveTicket ticket;
  std::uint32_t rank = 0;
  std::uint32_t file_count = 0;  // of the whole save; 0 if nobody can say yet
  bool file_per_item = false;
};

class RankWriter {
 public:
  // Decides which source goes where. Touches no storage.
  static Result<std::unique_ptr<RankWriter>> make(const RankPart& part, std::span<const data_file::ItemSource> sources);

  // Returns what there is to say of each file, in the order of names(). `storage` outlives this object. Call it once.
  Result<std::vector<WrittenFile>> write(storage::Storage& storage, const data_file::WriteOptions& options);

  // The final names of the files.
  const std::vector<std::string>& names() const { return names_; }
  // Where each source lies; `file` counts in names().
  const std::vector<ItemLocation>& locations() const { return locations_; }
  // After write(): who decides what becomes of the files. Unless they are handed over, destroying this object withdraws
  // them.
  commit::RankFiles& files() { return *files_; }

 private:
  explicit RankWriter(const RankPart& part) : part_(part) {}
  Result<void> lay_out(std::span<const data_file::ItemSource> sources);

  RankPart part_;
  std::vector<std::string> names_;
  std::vector<ItemLocation> locations_;
  std::vector<data_file::FileImage> images_;  // until they are written
  std::optional<commit::RankFiles> files_;
};

}  // namespace cairn::checkpointer
