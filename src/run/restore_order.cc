#include "run/restore_order.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "checkpoint/checkpoint_directories.h"
#include "commit/checkpoint_removal.h"
#include "commit/dcp_names.h"
#include "commit/lease.h"
#include "core/step_in_name.h"
#include "storage/open_directory.h"

namespace cairn::run {
namespace {

using checkpointer::Candidate;
using checkpointer::Depth;

bool is_damage_code(ErrorCode code) {
  return code == ErrorCode::kCorrupt || code == ErrorCode::kNotFound || code == ErrorCode::kReplaced;
}

// A link such as `latest` stands for its target, which is a candidate itself if it is in the root.
void resolve_links(const std::filesystem::path& root, std::vector<Candidate>& candidates) {
  namespace fs = std::filesystem;
  std::erase_if(candidates, [&root](Candidate& candidate) {
    std::error_code failure;
    if (candidate.is_dangling || step_in_name(candidate.directory)) return false;
    if (!fs::is_symlink(candidate.directory, failure)) return false;
    const fs::path target = fs::canonical(candidate.directory, failure);
    if (failure || !step_in_name(target)) return false;
    if (target.parent_path() == fs::canonical(root, failure)) return true;
    candidate.directory = target;
    return false;
  });
}

// Whether the directory holds data files without metadata, and no trace of a save in flight or of a removal. A save
// renames its data files into the directory before it commits: until then its private folder is there.
bool holds_remains(const std::filesystem::path& directory) {
  const auto storage = storage::open_directory(directory);
  if (!storage) return false;  // gone meanwhile
  const auto files = (*storage)->list();
  if (!files) return false;
  bool has_data = false;
  for (const storage::ListedFile& file : *files) {
    const bool is_of_a_save = file.is_folder && file.name.starts_with(commit::kFolderPrefix);
    if (is_of_a_save || file.name == commit::kRemovedName || commit::is_metadata_name(file.name)) return false;
    has_data = has_data || commit::is_data_file_name(file.name);
  }
  return has_data;
}

}  // namespace

bool is_damage(const Error& fault) {
  if (fault.causes().empty()) return is_damage_code(fault.code());
  return std::all_of(fault.causes().begin(), fault.causes().end(), is_damage);
}

std::optional<Error> RestoreOrder::without_step(const std::filesystem::path& directory) const {
  if (directory != root_ && step_in_name(directory)) return std::nullopt;
  const std::string place = "'" + directory.string() + "'";
  return Error(ErrorCode::kCorrupt,
               directory == root_
                   ? "the root " + place +
                         " is itself a checkpoint, of an unknown step: move its files into a "
                         "directory such as 'step-1000' in the root"
                   : "the name of " + place + " has no step: rename the directory, for example to 'step-1000'");
}

Result<RestoreOrder> RestoreOrder::of(const std::filesystem::path& root) {
  RestoreOrder order;
  order.root_ = root;
  CAIRN_TRY_ASSIGN(const auto directories, checkpointer::checkpoint_directories(root));
  if (!directories) return order;
  order.candidates_ = checkpointer::candidates_in(*directories, {}, checkpointer::Models::kIfAlone);
  std::erase_if(order.candidates_,
                [](const Candidate& candidate) { return candidate.is_model() || candidate.is_directory_of_files(); });
  resolve_links(root, order.candidates_);
  for (const std::filesystem::path& directory : *directories) {
    const auto is_it = [&directory](const Candidate& candidate) { return candidate.directory == directory; };
    if (std::none_of(order.candidates_.begin(), order.candidates_.end(), is_it) && holds_remains(directory)) {
      order.remains_.push_back(directory);
    }
  }
  return order;
}

Result<std::optional<std::filesystem::path>> RestoreOrder::next() {
  for (; next_ < candidates_.size(); ++next_) {
    const Candidate& candidate = candidates_[next_];
    std::optional<Error> fault = candidate.fault;
    if (!fault || !checkpointer::leaves_open(*fault)) fault = without_step(candidate.directory);
    if (!fault) fault = candidate.fault ? candidate.fault : checkpointer::fault_of(candidate, Depth::kTrailers);
    if (!fault) {
      pass_over_remains(step_in_name(candidate.directory));
      return std::optional(candidates_[next_++].directory);
    }
    if (checkpointer::leaves_open(*fault)) {
      return std::move(*fault).while_doing("looking for the newest checkpoint, which may be '" +
                                           candidate.directory.string() +
                                           "': allow access, repeat the call, or move the directory out of the root");
    }
    passed_over_.push_back(std::move(*fault).while_doing("resuming from '" + candidate.directory.string() + "'"));
  }
  const bool has_checkpoints = std::any_of(candidates_.begin(), candidates_.end(),
                                           [](const Candidate& candidate) { return !candidate.is_dangling; });
  if (!has_checkpoints && remains_.empty()) return std::optional<std::filesystem::path>();
  pass_over_remains(std::nullopt);
  std::string reasons;
  for (const Error& fault : passed_over_) reasons += std::string(reasons.empty() ? "" : "; ") + fault.what();
  return Error(ErrorCode::kCorrupt,
               "no checkpoint of the run can be loaded, and the run does not start anew by itself: repair a "
               "checkpoint, or give the run an empty root. " +
                   reasons);
}

// Without a record only the names order the remains. Those of earlier steps are of no interest.
void RestoreOrder::pass_over_remains(std::optional<std::uint64_t> newer_than) {
  std::erase_if(remains_, [&](const std::filesystem::path& directory) {
    const auto step = step_in_name(directory);
    if (newer_than && step && *step <= *newer_than) return false;
    passed_over_.push_back(
        Error(ErrorCode::kCorrupt, "'" + directory.string() +
                                       "' holds data files without .metadata: of an interrupted save, or of a "
                                       "checkpoint that lost the file. `cairn repair` can make a lost file again; "
                                       "otherwise remove the directory"));
    return true;
  });
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
