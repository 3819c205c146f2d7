// NearestNames: which of many names are most like one name, for an error about a name that is missing.
//
// The distance of two names is the number of characters to insert, remove, replace or swap with a neighbour (optimal
// string alignment). Names that differ by whole components ("module.") have distance 1. The work is bounded: once
// kCellsMax table cells and characters have been looked at, later names are passed over. Not thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

// Whole components of a dotted name, with the dot that follows them.
struct NameComponents {
  std::size_t offset;
  std::string_view text;
};

// The components of `longer` without which it is `shorter`; nullopt if the names differ in another way. `text` is a
// view into `longer`.
std::optional<NameComponents> added_components(std::string_view shorter, std::string_view longer);

class NearestNames {
 public:
  // Keeps the `count_max` nearest names. `wanted` must outlive this object.
  NearestNames(std::string_view wanted, std::size_t count_max);

  // Takes `name` if it is nearer than one of those kept, and not further than a quarter of the characters of `wanted`.
  void consider(std::string_view name);
  // The nearest first; of equally near ones that which was considered first.
  std::vector<std::string> take() &&;

 private:
  struct Found {
    std::size_t distance;
    std::string name;
  };

  // Of two names without their common start and end, if it is below `limit`; otherwise any number from `limit` on.
  std::size_t distance_below(std::size_t limit, std::string_view a, std::string_view b);

  std::string_view wanted_;
  std::size_t count_max_;
  std::size_t limit_;  // a name must be nearer than this
  std::size_t cells_left_;
  std::vector<Found> found_;  // sorted by distance
};

}  // namespace cairn
