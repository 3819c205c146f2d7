#include "core/nearest_names.h"

#include <algorithm>
#include <array>
#include <utility>

namespace cairn {
namespace {

constexpr std::size_t kCellsMax = std::size_t{1} << 25;  // a tenth of a second
constexpr std::size_t kDistanceMax = 8;

}  // namespace

std::optional<NameComponents> added_components(std::string_view shorter, std::string_view longer) {
  if (longer.size() <= shorter.size()) return std::nullopt;
  const std::size_t count = longer.size() - shorter.size();
  const auto differ = std::mismatch(shorter.begin(), shorter.end(), longer.begin()).first;
  auto offset = static_cast<std::size_t>(differ - shorter.begin());
  if (longer.substr(offset + count) != shorter.substr(offset)) return std::nullopt;
  // The added text may also begin earlier ("mod" + "ule.mod" + "el" is "" + "module." + "model").
  for (;; --offset) {
    const bool whole = (offset == 0 || longer[offset - 1] == '.') && longer[offset + count - 1] == '.';
    if (whole) return NameComponents{offset, longer.substr(offset, count)};
    if (offset == 0 || longer[offset - 1 + count] != shorter[offset - 1]) return std::nullopt;
  }
}

NearestNames::NearestNames(std::string_view wanted, std::size_t count_max)
    : wanted_(wanted),
      count_max_(count_max),
      limit_(std::clamp<std::size_t>(wanted.size() / 4, 1, kDistanceMax) + 1),
      cells_left_(kCellsMax) {}

void NearestNames::consider(std::string_view name) {
  const std::size_t looked_at = std::min(name.size(), wanted_.size()) + 1;
  if (count_max_ == 0 || cells_left_ < looked_at) return;
  cells_left_ -= looked_at;
  std::size_t distance = limit_;
  if (added_components(name, wanted_) || added_components(wanted_, name)) {
    distance = 1;
  } else {
    const auto start =
        std::mismatch(name.begin(), name.begin() + static_cast<std::ptrdiff_t>(looked_at - 1), wanted_.begin()).first -
        name.begin();
    std::string_view a = wanted_.substr(static_cast<std::size_t>(start));
    std::string_view b = name.substr(static_cast<std::size_t>(start));
    while (!a.empty() && !b.empty() && a.back() == b.back()) {
      a.remove_suffix(1);
      b.remove_suffix(1);
    }
    distance = distance_below(limit_, a, b);
  }
  if (distance >= limit_) return;
  const auto place = std::upper_bound(found_.begin(), found_.end(), distance,
                                      [](std::size_t value, const Found& found) { return value < found.distance; });
  found_.insert(place, {distance, std::string(name)});
  if (found_.size() > count_max_) found_.pop_back();
  if (found_.size() == count_max_) limit_ = found_.back().distance;
}

std::vector<std::string> NearestNames::take() && {
  std::vector<std::string> names;
  for (Found& found : found_) names.push_back(std::move(found.name));
  return names;
}

std::size_t NearestNames::distance_below(std::size_t limit, std::string_view a, std::string_view b) {
  if (a.size() > b.size()) std::swap(a, b);
  if (b.size() - a.size() >= limit) return limit;
  if (a.empty()) return b.size();
  // Only cells at most `limit` - 1 off the diagonal can be below `limit`. Three rows: a swap uses the row before the
  // last.
  constexpr std::size_t kWidth = 2 * (kDistanceMax + 1) + 3;
  const std::size_t reach = limit - 1, centre = reach + 1;
  std::array<std::array<std::size_t, kWidth>, 3> rows{};
  for (auto& row : rows) row.fill(limit);
  for (std::size_t j = 0; j <= std::min(reach, b.size()); ++j) rows[0][centre + j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    auto& row = rows[i % 3];
    const auto& above = rows[(i - 1) % 3];
    const auto& before = rows[(i - 2 + 3) % 3];  // row i - 2; its cells are `limit` for i = 1
    row.fill(limit);
    std::size_t least = limit;
    const std::size_t first = i > reach ? i - reach : 0, last = std::min(b.size(), i + reach);
    if (cells_left_ < last + 1 - std::min(first, last + 1)) return limit;
    cells_left_ -= last + 1 - std::min(first, last + 1);
    for (std::size_t j = first; j <= last; ++j) {
      const std::size_t at = centre + j - i;
      std::size_t cell = above[at + 1] + 1;  // a's character is removed
      if (j == 0) {
        cell = i;
      } else {
        cell = std::min({cell, row[at - 1] + 1, above[at] + (a[i - 1] == b[j - 1] ? 0 : 1)});
        const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
        if (swapped) cell = std::min(cell, before[at] + 1);
      }
      row[at] = std::min(cell, limit);
      least = std::min(least, row[at]);
    }
    if (least >= limit) return limit;
  }
  return rows[a.size() % 3][centre + b.size() - a.size()];
}

}  // namespace cairn
