// RestoreOrder: the checkpoints that a run may resume from, one after the other. Damage leads to an older checkpoint,
// and so does a name without a step; no other error does.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_candidates.h"

namespace cairn::run {

// Whether `fault` is damage of a checkpoint: its bytes differ from the saved bytes, or files are missing. Of an error
// of several ranks, whether the error of each is.
bool is_damage(const Error& fault);

class RestoreOrder {
 public:
  // Lists the checkpoints of `root`; a root that does not exist holds none.
  static Result<RestoreOrder> of(const std::filesystem::path& root);

  // The newest good checkpoint that next() has not returned. Nullopt if `root` holds none at all. kCorrupt if it holds
  // checkpoints, or what is left of them, and none is left to return; another error if it is not certain whether a
  // newer one is good.
  Result<std::optional<std::filesystem::path>> next();
  // The last result of next() can't be loaded.
  void pass_over(Error fault);
  // Why newer checkpoints than the last result were passed over, since the last call.
  std::vector<Error> take_warnings();

 private:
  // Why a run can't resume from the directory: it could not tell how far the training has come, and would count its
  // steps anew. Nullopt if the name has a step.
  std::optional<Error> without_step(const std::filesystem::path& directory) const;
  void pass_over_remains(std::optional<std::uint64_t> newer_than);

  std::filesystem::path root_;
  std::vector<checkpointer::Candidate> candidates_;
  std::vector<std::filesystem::path> remains_;  // directories of data files whose metadata is missing
  std::size_t next_ = 0;
  std::vector<Error> passed_over_;
  std::size_t told_ = 0;
};

}  // namespace cairn::run
