// PlainTensors: finds plain tensors, and reads their address, dtype, sizes and strides.
//
// A tensor is plain if address, dtype, sizes and strides describe all elements: the tensor is strided, in the CPU's
// memory, and without torch's lazy negation or conjugation. For a caller that reads memory of CUDA devices too, such a
// tensor on a CUDA device is plain if its elements lie in runs that a device copies at full speed. The class reads
// attributes of torch's Python objects, each looked up once, and does not link torch's library.
#pragma once

#include <cairn/state_dict.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dlpack_exchange.h"

namespace nb = nanobind;

namespace cairn::python {

class PlainTensors {
 public:
  // `codes`: the dtypes of torch that a plain tensor may have, each with the engine's code. `marks`: the names of the
  // attributes by which a tensor declares its chunks. `cuda_streams` returns the current stream of a CUDA device as an
  // integer, and is asked once for each device; None: only tensors of the CPU are plain.
  PlainTensors(const nb::dict& codes, const nb::tuple& marks, nb::object cuda_streams);

  // Nullopt if `tensor` is no torch.Tensor or Parameter (subclasses excluded), or is not plain. The memory belongs to
  // the tensor.
  std::optional<TensorView> view_of(nb::handle tensor) const;
  // As view_of(), of an entry of a state dict: nullopt also if the tensor declares its chunks.
  std::optional<TensorView> view_of_entry(nb::handle tensor) const;
  // The torch.UntypedStorage that keeps the memory of a plain tensor alive. `entry` holds the view of the tensor.
  // Throws kInvalidArgument, with the entry's key, if an element is outside of the storage: `storage.resize_()` frees
  // or shrinks a storage, and the storage's tensors keep their sizes (FSDP frees parameters like this between their
  // uses).
  nb::object storage_of(nb::handle tensor, const Entry& entry) const;
  // Throws as storage_of() for a strided tensor of any dtype, of the CPU or of a CUDA device. Both throw kUnsupported
  // for a tensor without memory: a wrapper of torch.func or of torch.compile. Tensors on other devices are not
  // checked.
  void check_memory(const std::string& key, nb::handle tensor) const;
  bool requires_grad(nb::handle tensor) const { return requires_grad_.of(tensor).is(Py_True); }

 private:
  // An attribute of a class, read without a look-up by name.
  class Attribute {
   public:
    Attribute(nb::handle type, const char* name);
    nb::object of(nb::handle instance) const;

   private:
    nb::object descriptor_;
    descrgetfunc get_;
  };

  struct Layout {
    std::uintptr_t data;  // the address of the first element
    const Extents& sizes;
    const Extents& strides;  // in elements
    std::uint64_t item_bytes;
  };

  bool is_tensor(nb::handle object) const;  // without subclasses
  void check_bounds(const std::string& key, nb::handle tensor, const Layout& layout, nb::handle storage) const;
  std::optional<DType> dtype_of(nb::handle tensor) const;
  // Both read address, sizes and strides of a tensor in the CPU's memory, and return false for any other tensor.
  // read_exchange() takes a single call, but needs torch 2.10 or later, and fails for some dtypes. read_attributes()
  // takes ten times as long.
  bool read_exchange(nb::handle tensor, TensorView& view) const;
  bool read_attributes(nb::handle tensor, TensorView& view) const;
  Device cuda_device(std::int32_t ordinal) const;

  nb::object torch_ = nb::module_::import_("torch");
  nb::object tensor_ = torch_.attr("Tensor");
  nb::object parameter_ = torch_.attr("nn").attr("Parameter");
  nb::object strided_ = torch_.attr("strided");
  std::vector<std::pair<nb::object, DType>> dtypes_;
  std::vector<nb::object> marks_;  // interned strings
  nb::object cuda_streams_;
  mutable std::map<std::int32_t, std::uintptr_t> known_streams_;  // by ordinal
  Attribute is_cpu_{tensor_, "is_cpu"};
  Attribute is_cuda_{tensor_, "is_cuda"};
  Attribute layout_{tensor_, "layout"};
  Attribute dtype_{tensor_, "dtype"};
  Attribute is_nested_{tensor_, "is_nested"};
  Attribute shape_{tensor_, "shape"};
  Attribute requires_grad_{tensor_, "requires_grad"};
  nb::object is_neg_ = tensor_.attr("is_neg");
  nb::object is_conj_ = tensor_.attr("is_conj");
  nb::object untyped_storage_ = tensor_.attr("untyped_storage");
  nb::object storage_offset_ = tensor_.attr("storage_offset");
  nb::object element_size_ = tensor_.attr("element_size");
  nb::object data_ptr_ = tensor_.attr("data_ptr");
  nb::object stride_ = tensor_.attr("stride");
  nb::object get_device_ = tensor_.attr("get_device");
  DlpackReader exchange_ = dlpack_reader_of(tensor_);
};

}  // namespace cairn::python
