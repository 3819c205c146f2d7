#include "run/run_listing.h"

#include <memory>
#include <utility>

#include "checkpoint/checkpoint_candidates.h"
#include "checkpoint/checkpoint_directories.h"
#include "checkpoint/open_calls.h"
#include "commit/metadata_in_place.h"
#include "core/step_in_name.h"
#include "storage/open_directory.h"

namespace cairn::run {
namespace {

Result<Checkpoint> open_for_notes(const std::filesystem::path& directory) {
  CAIRN_TRY_ASSIGN(std::unique_ptr<storage::Storage> storage, storage::open_directory(directory));
  return checkpointer::open_in(std::move(storage), std::string(kMetadataName), checkpointer::Decoding::kWanted);
}

}  // namespace

Result<std::vector<ListedStep>> listed_steps(const std::filesystem::path& root) {
  std::vector<ListedStep> listed;
  CAIRN_TRY_ASSIGN(const auto directories, checkpointer::checkpoint_directories(root));
  if (!directories) return listed;
  for (const auto& candidate : checkpointer::candidates_in(*directories, {}, checkpointer::Models::kIfAlone)) {
    if (candidate.is_model() || candidate.is_directory_of_files() || candidate.fault || candidate.directory == root)
      continue;
    const auto step = step_in_name(candidate.directory);
    if (step && !checkpointer::fault_of(candidate)) listed.push_back({*step, candidate.directory});
  }
  return listed;
}

Result<std::string> notes_in(const std::filesystem::path& directory) {
  CAIRN_TRY_ASSIGN(const Checkpoint checkpoint, open_for_notes(directory));
  return checkpoint.notes();
}

Result<std::map<std::string, double>> metrics_in(const std::filesystem::path& directory) {
  CAIRN_TRY_ASSIGN(const Checkpoint checkpoint, open_for_notes(directory));
  CAIRN_TRY_ASSIGN(const auto metrics, checkpoint.metrics());
  return std::map<std::string, double>(metrics.begin(), metrics.end());
}

Result<std::optional<std::uint64_t>> best_of(const std::vector<ListedStep>& listed, const std::string& metric,
                                             RetentionRule::Best::Order order) {
  std::optional<std::pair<double, std::uint64_t>> best;
  for (const ListedStep& entry : listed) {
    const auto metrics = metrics_in(entry.directory);
    if (!metrics && metrics.error().code() == ErrorCode::kNotFound) continue;  // removed since it was listed
    if (!metrics) return metrics.error();
    const auto found = metrics->find(metric);
    if (found == metrics->end()) continue;
    const double value = order == RetentionRule::Best::Order::kMin ? found->second : -found->second;
    if (!best || value < best->first) best = {value, entry.step};
  }
  return best ? std::optional(best->second) : std::nullopt;
}

}  // namespace cairn::run
