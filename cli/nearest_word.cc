#include "nearest_word.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

namespace cairn::cli {
namespace {

// A longer word is not a misspelled command; the bound also limits the quadratic cost of the distance.
constexpr std::size_t kWordMax = 64;

// Optimal string alignment: three rows of the table of prefixes.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::array<std::vector<std::size_t>, 3> rows;
  for (auto& row : rows) row.resize(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) rows[1][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    auto& [before_last, last, row] = rows;
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      const bool exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (exchanged) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    std::rotate(rows.begin(), rows.begin() + 1, rows.end());
  }
  return rows[1][b.size()];
}

}  // namespace

std::optional<std::string> nearest_word(std::string_view word, const std::vector<std::string>& known) {
  constexpr std::size_t kPrefixMin = 2;
  if (word.size() > kWordMax) return std::nullopt;
  const auto begun = std::find_if(known.begin(), known.end(), [&](const std::string& candidate) {
    return word.size() >= kPrefixMin && word != "--" && candidate.starts_with(word);
  });
  if (begun != known.end()) return *begun;
  std::optional<std::string> nearest;
  std::size_t smallest = 0;
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(word, candidate);
    const std::size_t allowed = std::max<std::size_t>(std::max(word.size(), candidate.size()) / 3, 1);
    if (distance > allowed || (nearest && distance >= smallest)) continue;
    nearest = candidate;
    smallest = distance;
  }
  return nearest;
}

}  // namespace cairn::cli
