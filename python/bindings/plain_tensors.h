// PlainTensors: tells the tensors of which address, dtype, sizes and strides say it all, and reads these.
//
// torch is asked through the attributes of its Python objects, each looked up once; its library is not linked. A tensor
// is plain if it is strided, in the CPU's memory, and has no elements that differ from those in memory (the lazy
// negation and conjugation of torch).
#pragma once

#include <cairn/state_dict.h>
#include <nanobind/nanobind.h>

#include <optional>
#include <utility>
#include <vector>

#include "dlpack_exchange.h"

namespace nb = nanobind;

namespace cairn::python {

class PlainTensors {
 public:
  // `codes`: torch's dtypes that a plain tensor may have, each with the engine's code for it. `mark`: a tensor with an
  // attribute of this name is not plain; None: no attribute matters.
  PlainTensors(const nb::dict& codes, nb::object mark);

  // Nullopt for what is no torch.Tensor or Parameter (subclasses excluded) or is not plain. The memory is the tensor's.
  std::optional<TensorView> view_of(nb::handle tensor) const;
  // The torch.UntypedStorage that keeps the memory of a plain tensor alive.
  nb::object storage_of(nb::handle tensor) const;
  bool requires_grad(nb::handle tensor) const { return requires_grad_.of(tensor).is(Py_True); }

 private:
  // An attribute of a class, read without a look-up by its name.
  class Attribute {
   public:
    Attribute(nb::handle type, const char* name);
    nb::object of(nb::handle instance) const;

   private:
    nb::object descriptor_;
    descrgetfunc get_;
  };

  std::optional<DType> dtype_of(nb::handle tensor) const;
  // Address, sizes and strides of a tensor in the CPU's memory; false for another. The first way takes one call, but
  // not every torch knows it, nor does it know every tensor; the second takes ten times as long.
  bool read_exchange(nb::handle tensor, TensorView& view) const;
  bool read_attributes(nb::handle tensor, TensorView& view) const;

  nb::object torch_ = nb::module_::import_("torch");
  nb::object tensor_ = torch_.attr("Tensor");
  nb::object parameter_ = torch_.attr("nn").attr("Parameter");
  nb::object strided_ = torch_.attr("strided");
  std::vector<std::pair<nb::object, DType>> dtypes_;
  nb::object mark_;
  Attribute is_cpu_{tensor_, "is_cpu"};
  Attribute layout_{tensor_, "layout"};
  Attribute dtype_{tensor_, "dtype"};
  Attribute is_nested_{tensor_, "is_nested"};
  Attribute shape_{tensor_, "shape"};
  Attribute requires_grad_{tensor_, "requires_grad"};
  nb::object is_neg_ = tensor_.attr("is_neg");
  nb::object is_conj_ = tensor_.attr("is_conj");
  nb::object untyped_storage_ = tensor_.attr("untyped_storage");
  nb::object data_ptr_ = tensor_.attr("data_ptr");
  nb::object stride_ = tensor_.attr("stride");
  DlpackReader exchange_ = dlpack_reader_of(tensor_);
};

}  // namespace cairn::python
