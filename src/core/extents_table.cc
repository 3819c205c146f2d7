#include "core/extents_table.h"

#include <cstddef>

namespace cairn {
namespace {

std::string_view bytes_of_list(const Extents& list) {
  return {reinterpret_cast<const char*>(list.data()), list.size() * sizeof(std::int64_t)};
}

}  // namespace

std::uint32_t ExtentsTable::number_of(const Extents& list) {
  const auto found = numbers_.find(bytes_of_list(list));
  if (found != numbers_.end()) return found->second;
  const auto number = static_cast<std::uint32_t>(lists_.size());
  lists_.push_back(std::make_shared<const Extents>(list));
  numbers_.emplace(bytes_of_list(*lists_.back()), number);
  return number;
}

}  // namespace cairn
