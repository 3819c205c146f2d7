// DirectorySave: an asynchronous save of the files of all ranks into one directory (AsyncSaveOptions::files), on one
// rank, from the files to the moment when the writer continues without the trainer. The steps stand at the top of
// directory_save.cc.
//
// Threads: one at a time.
#pragma once

#include <cairn/async_checkpointer.h>
#include <cairn/result.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordination/ranks.h"
#include "events/operation.h"
#include "save/async_save_operation.h"
#include "save/staged_save.h"

namespace cairn::checkpointer {

class DirectorySave {
 public:
  // `resources.plans` is not used.
  DirectorySave(const AsyncSaveResources& resources, const std::filesystem::path& directory,
                const AsyncSaveOptions& options);

  // `state`: the tensors of the files, or the error because of which the caller has none. Call run() once.
  Result<AsyncSave> run(const Result<const StateDict*>& state);

 private:
  Result<AsyncSave> take_steps(const Result<const StateDict*>& state);
  Result<std::string> prepare(const Result<const StateDict*>& state);
  Result<void> lay_out(const StateDict& state);
  Result<std::vector<std::string>> answer(const std::vector<std::string>& messages);
  Result<AsyncSave> begin();
  std::string new_directory(const SaveId& save_id) const;

  const AsyncSaveResources& resources_;
  std::filesystem::path directory_;  // absolute, and no link
  const AsyncSaveOptions& options_;
  coordination::Ranks ranks_;
  commit::RankPlace place_;
  std::shared_ptr<writer::StagedLayout> layout_ = std::make_shared<writer::StagedLayout>();
  std::vector<std::string> names_;    // of this rank's files
  std::vector<std::uint64_t> sizes_;  // likewise
  std::optional<commit::SaveTicket> ticket_;
  events::Operation events_;  // of shared_ once that exists
  std::shared_ptr<StagedSave> shared_;
  bool is_with_writer_ = false;
};

// For a rank without files: takes part in the agreement with `reason`. Returns the error of all ranks.
Error abandon_directory_save(coordination::Ranks& ranks, const Error& reason);

}  // namespace cairn::checkpointer
