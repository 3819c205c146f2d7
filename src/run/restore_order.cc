#include "run/restore_order.h"

#include <algorithm>
#include <utility>

#include "checkpoint/checkpoint_directories.h"

namespace cairn::run {
namespace {

using checkpointer::Candidate;
using checkpointer::Depth;

bool is_damage_code(ErrorCode code) {
  return code == ErrorCode::kCorrupt || code == ErrorCode::kNotFound || code == ErrorCode::kReplaced;
}

}  // namespace

bool is_damage(const Error& fault) {
  if (fault.causes().empty()) return is_damage_code(fault.code());
  return std::all_of(fault.causes().begin(), fault.causes().end(), is_damage);
}

Result<RestoreOrder> RestoreOrder::of(const std::filesystem::path& root) {
  RestoreOrder order;
  CAIRN_TRY_ASSIGN(const auto directories, checkpointer::checkpoint_directories(root));
  if (!directories) return order;
  order.candidates_ = checkpointer::candidates_in(*directories, {}, checkpointer::Models::kIfAlone);
  std::erase_if(order.candidates_, [](const Candidate& candidate) { return candidate.is_model(); });
  return order;
}

Result<std::optional<std::filesystem::path>> RestoreOrder::next() {
  for (; next_ < candidates_.size(); ++next_) {
    const Candidate& candidate = candidates_[next_];
    std::optional<Error> fault =
        candidate.fault ? candidate.fault : checkpointer::fault_of(candidate, Depth::kTrailers);
    if (!fault) return std::optional(candidates_[next_++].directory);
    if (checkpointer::leaves_open(*fault)) {
      return std::move(*fault).while_doing("looking for the newest checkpoint, which may be '" +
                                           candidate.directory.string() +
                                           "': allow access, repeat the call, or move the directory out of the root");
    }
    passed_over_.push_back(std::move(*fault).while_doing("resuming from '" + candidate.directory.string() + "'"));
  }
  const bool has_checkpoints = std::any_of(candidates_.begin(), candidates_.end(),
                                           [](const Candidate& candidate) { return !candidate.is_dangling; });
  if (!has_checkpoints) return std::optional<std::filesystem::path>();
  std::string reasons;
  for (const Error& fault : passed_over_) reasons += std::string(reasons.empty() ? "" : "; ") + fault.what();
  return Error(ErrorCode::kCorrupt,
               "no checkpoint of the run can be loaded, and the run does not start anew by itself: repair a "
               "checkpoint, or give the run an empty root. " +
                   reasons);
}

void RestoreOrder::pass_over(Error fault) {
  const std::string directory = candidates_[next_ - 1].directory.string();
  passed_over_.push_back(std::move(fault).while_doing("resuming from '" + directory + "'"));
}

std::vector<Error> RestoreOrder::take_warnings() {
  std::vector<Error> warnings(passed_over_.begin() + static_cast<std::ptrdiff_t>(told_), passed_over_.end());
  told_ = passed_over_.size();
  return warnings;
}

}  // namespace cairn::run
