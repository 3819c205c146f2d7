// HeldStorages: keeps the memory of tensors alive while the engine has the tensors' addresses.
//
// A reference to the tensor object is not enough: `tensor.data = other` and `tensor.set_()` drop the tensor's storage,
// and the memory goes back to the system. A held storage loses its memory only by `storage.resize_()`, which can't be
// prevented; keys_of_moved() finds resized storages afterwards.
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
  // `storage` is the torch.UntypedStorage of the tensor in entry `entry` of a StateDict.
  void add(std::size_t entry, nb::object storage) { held_.emplace_back(entry, std::move(storage)); }
  // The keys of the state's tensors with elements outside the present memory of the tensors' storages.
  std::vector<std::string> keys_of_moved(const StateDict& state) const;

 private:
  std::vector<std::pair<std::size_t, nb::object>> held_;
};

}  // namespace cairn::python
