// WrittenTensors: the tensors that a load fills in their own memory.
//
// Holds the tensors and their storages while the engine has the tensors' addresses, as HeldStorages does for a save.
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

class WrittenTensors {
 public:
  // `tensor` is the tensor in entry `entry` of a StateDict, `storage` its torch.UntypedStorage.
  void add(std::size_t entry, nb::object tensor, nb::object storage) {
    written_.push_back({entry, std::move(tensor), std::move(storage)});
  }
  nb::list tensors() const;
  // The tensor of the entry; null if the entry was not added.
  nb::object tensor_of(std::size_t entry) const;
  // The keys of the state's tensors that have another storage than at add().
  std::vector<std::string> keys_of_replaced(const StateDict& state) const;

 private:
  struct Written {
    std::size_t entry;
    nb::object tensor;
    nb::object storage;
  };
  std::vector<Written> written_;
};

}  // namespace cairn::python
