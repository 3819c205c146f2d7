#include "plan/file_assignment.h"

namespace cairn::plan {

FileAssignment assign_files(const std::vector<bool>& is_value, bool file_per_item) {
  std::vector<std::size_t> order;
  order.reserve(is_value.size());
  for (const bool values : {false, true}) {
    for (std::size_t item = 0; item < is_value.size(); ++item) {
      if (is_value[item] == values) order.push_back(item);
    }
  }
  FileAssignment files;
  if (order.empty()) return files;
  if (!file_per_item) {
    files.push_back(std::move(order));
    return files;
  }
  for (const std::size_t item : order) files.push_back({item});
  return files;
}

}  // namespace cairn::plan
