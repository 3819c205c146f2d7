#include "held_storages.h"

#include <cstdint>

#include "bound.h"
#include "call_options.h"

namespace cairn::python {
namespace {

// Addresses: [begin, end).
struct MemoryRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

MemoryRange range_of(const TensorView& view) {
  const auto begin = reinterpret_cast<std::uintptr_t>(view.data);
  std::int64_t last = 0;  // element, counted from the first; torch has no negative strides
  for (std::size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] == 0) return {begin, begin};
    last += (view.sizes[i] - 1) * view.strides[i];
  }
  return {begin, begin + (static_cast<std::uintptr_t>(last) + 1) * item_bytes(view.dtype)};
}

}  // namespace

std::vector<std::string> HeldStorages::keys_of_moved(const StateDict& state) const {
  std::vector<std::string> keys;
  for (const auto& [index, storage] : held_) {
    const Entry& entry = state.entries().at(index);
    const auto* tensor = std::get_if<TensorEntry>(&entry.content);
    if (tensor == nullptr) continue;
    const MemoryRange needed = range_of(tensor->local);
    if (needed.begin == needed.end) continue;
    const auto begin = nb::cast<std::uintptr_t>(storage.attr("data_ptr")());
    const auto bytes = nb::cast<std::uintptr_t>(storage.attr("nbytes")());
    if (begin == 0 || needed.begin < begin || needed.end > begin + bytes) keys.push_back(entry.fqn);
  }
  return keys;
}

void bind_held_storages(nb::module_& module) {
  nb::class_<HeldStorages>(module, "HeldStorages")
      .def(nb::init<>())
      .def("add", &HeldStorages::add)
      .def("keys_of_moved",
           [](const HeldStorages& self, const StateDict& state) { return strings(self.keys_of_moved(state)); });
}

}  // namespace cairn::python
