// NearestNames: finds the names nearest to a missing name, for the error about the missing name.
//
// The distance of two names is the number of characters to insert, remove, replace or swap with a neighbour (optimal
// string alignment). Names that differ by whole components ("module.") have distance 1. The work is bounded: after
// kCellsMax table cells and characters, later names are skipped. Not thread-safe.
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

// The components in `longer` that `shorter` lacks; nullopt if the names differ in any other way. `text` is a view
// into `longer`.
std::optional<NameComponents> added_components(std::string_view shorter, std::string_view longer);

class NearestNames {
 public:
  // Keeps the `count_max` nearest names. `wanted` must outlive the object.
  NearestNames(std::string_view wanted, std::size_t count_max);

  // Keeps `name` if its distance is at most a quarter of the length of `wanted` and below the distance of a kept name.
  void consider(std::string_view name);
  // The kept names, the nearest first; at equal distance, in the order of consider().
  std::vector<std::string> take() &&;

 private:
  struct Found {
    std::size_t distance;
    std::string name;
  };

  // The distance of two names without their common start and end, if the distance is below `limit`. Any number >=
  // `limit` otherwise.
  std::size_t distance_below(std::size_t limit, std::string_view a, std::string_view b);

  std::string_view wanted_;
  std::size_t count_max_;
  std::size_t limit_;  // the distance of a name must be below limit_
  std::size_t cells_left_;
  std::vector<Found> found_;  // sorted by distance
};

}  // namespace cairn
