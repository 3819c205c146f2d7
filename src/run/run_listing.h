// The steps of a run that have whole checkpoints, and their notes.
#pragma once

#include <cairn/result.h>
#include <cairn/retention.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace cairn::run {

struct ListedStep {
  std::uint64_t step;
  std::filesystem::path directory;
};

// In the order of latest(), the newest first: the checkpoints that are whole, as latest() demands, and whose names hold
// a number. None if `root` does not exist.
Result<std::vector<ListedStep>> listed_steps(const std::filesystem::path& root);

Result<std::string> notes_in(const std::filesystem::path& directory);
Result<std::map<std::string, double>> metrics_in(const std::filesystem::path& directory);

// The step with the best value; of equal values the newer. Nullopt if no checkpoint has the metric.
Result<std::optional<std::uint64_t>> best_of(const std::vector<ListedStep>& listed, const std::string& metric,
                                             RetentionRule::Best::Order order);

}  // namespace cairn::run
