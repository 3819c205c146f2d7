// HeldStorages: keeps the memory of tensors alive while the engine has their addresses.
//
// A tensor object is not enough: `tensor.data = other` and `tensor.set_()` drop its storage, which then goes back to
// the system. A storage's memory goes only by `storage.resize_()`, which can't be prevented; keys_of_moved() notices it
// afterwards.
//
// Made, used and destroyed with Python's lock held.
#pragma once

#include <cairn/state_dict.h>
#include <nanobind/nanobind.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace cairn::python {

class HeldStorages {
 public:
  // `storage` is a torch.UntypedStorage: that of the tensor of entry `entry` of a StateDict.
  void add(std::size_t entry, nb::object storage) { held_.emplace_back(entry, std::move(storage)); }
  // The keys of the state's tensors whose elements are not in the memory of their storages any more.
  std::vector<std::string> keys_of_moved(const StateDict& state) const;

 private:
  std::vector<std::pair<std::size_t, nb::object>> held_;
};

}  // namespace cairn::python
