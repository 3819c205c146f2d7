// The comparison of two checkpoints.
#include <cairn/inspect.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <utility>

#include "bound.h"
#include "call_options.h"
#include "text.h"

namespace cairn::python {
namespace {

nb::tuple index_of(const Extents& index) {
  nb::list numbers;
  for (const std::int64_t number : index) numbers.append(number);
  return nb::tuple(numbers);
}

// (elements, unequal, differing, first differing or None, numbers or None); numbers: (NaN on one side, largest absolute
// difference, largest relative difference, index of the largest or None)
nb::object elements_of(const std::optional<ElementDifference>& elements) {
  if (!elements) return nb::none();
  const nb::object none = nb::none();
  nb::object numbers = none;
  if (elements->are_numbers) {
    numbers = nb::make_tuple(elements->nan_on_one_side, elements->largest_absolute, elements->largest_relative,
                             elements->largest_absolute == 0 ? none : nb::object(index_of(elements->largest_at)));
  }
  return nb::make_tuple(elements->elements, elements->unequal, elements->differing,
                        elements->differing == 0 ? none : nb::object(index_of(elements->first_differing)), numbers);
}

nb::list differences_of(const std::vector<KeyDifference>& differences) {
  nb::list list;
  for (const KeyDifference& difference : differences) {
    const auto text = [](const std::string& side) { return side.empty() ? nb::object(nb::none()) : to_str(side); };
    list.append(nb::make_tuple(to_str(difference.key), to_str(name_of(difference.kind)), text(difference.a),
                               text(difference.b), to_str(difference.place), elements_of(difference.elements)));
  }
  return list;
}

// (differences, tolerated, tensors, values, bytes compared). The keywords are thread_count, follow_links and deadlines.
nb::tuple diff_directories(const std::pair<nb::bytes, nb::bytes>& directories,
                           const std::pair<std::optional<double>, bool>& tolerance, const nb::list& keys,
                           const nb::kwargs& keywords) {
  const std::filesystem::path a = to_filesystem_path(directories.first);
  const std::filesystem::path b = to_filesystem_path(directories.second);
  DiffOptions options{.tolerance = tolerance.first,
                      .ignore_dtype = tolerance.second,
                      .thread_count = nb::cast<std::size_t>(keywords["thread_count"]),
                      .follow_links = nb::cast<bool>(keywords["follow_links"]),
                      .deadlines = deadlines_of(keywords["deadlines"])};
  for (const nb::handle key : keys) options.keys.push_back(to_utf8(key));
  const DiffReport report = without_lock(options, [&] { return diff(a, b, options); });
  return nb::make_tuple(differences_of(report.differences), differences_of(report.tolerated), report.tensors,
                        report.values, report.bytes_compared);
}

}  // namespace

void bind_diff(nb::module_& module) { module.def("diff", &diff_directories); }

}  // namespace cairn::python
