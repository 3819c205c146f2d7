#include "plain_tensors.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "bound.h"
#include "text.h"

namespace cairn::python {
namespace {

nb::object call(const nb::object& method, nb::handle tensor) {
  nb::object result = nb::steal(PyObject_CallFunctionObjArgs(method.ptr(), tensor.ptr(), nullptr));
  if (!result.is_valid()) throw nb::python_error();
  return result;
}

bool is_complex(DType dtype) {
  return dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

}  // namespace

PlainTensors::Attribute::Attribute(nb::handle type, const char* name)
    : descriptor_(type.attr(name)),
      get_(reinterpret_cast<descrgetfunc>(PyType_GetSlot(Py_TYPE(descriptor_.ptr()), Py_tp_descr_get))) {
  if (get_ == nullptr) throw nb::type_error(name);
}

nb::object PlainTensors::Attribute::of(nb::handle instance) const {
  nb::object value = nb::steal(get_(descriptor_.ptr(), instance.ptr(), instance.type().ptr()));
  if (!value.is_valid()) throw nb::python_error();
  return value;
}

PlainTensors::PlainTensors(const nb::dict& codes, nb::object mark) : mark_(std::move(mark)) {
  for (const auto& [dtype, code] : codes) {
    if (const auto known = dtype_from_code(nb::cast<std::uint8_t>(code))) {
      dtypes_.emplace_back(nb::borrow(dtype), *known);
    }
  }
}

std::optional<DType> PlainTensors::dtype_of(nb::handle tensor) const {
  const nb::object dtype = dtype_.of(tensor);
  const auto found = std::find_if(dtypes_.begin(), dtypes_.end(), [&](const auto& it) { return it.first.is(dtype); });
  if (found == dtypes_.end()) return std::nullopt;
  return found->second;
}

bool PlainTensors::read_exchange(nb::handle tensor, TensorView& view) const {
  if (exchange_ == nullptr) return false;
  nb::dlpack::dltensor exchanged;
  if (exchange_(tensor.ptr(), &exchanged) != 0) {  // a dtype without a code in DLPack
    PyErr_Clear();
    return false;
  }
  const auto dimensions = static_cast<std::size_t>(exchanged.ndim);
  const bool has_strides = dimensions == 0 || exchanged.strides != nullptr;
  if (exchanged.device.device_type != nb::device::cpu::value || !has_strides) return false;
  view.data = static_cast<std::byte*>(exchanged.data) + exchanged.byte_offset;
  view.sizes = Extents(std::span<const std::int64_t>(exchanged.shape, dimensions));
  view.strides = Extents(std::span<const std::int64_t>(exchanged.strides, dimensions));
  return true;
}

bool PlainTensors::read_attributes(nb::handle tensor, TensorView& view) const {
  if (!is_cpu_.of(tensor).is(Py_True)) return false;
  view.sizes = to_extents(shape_.of(tensor));
  view.strides = to_extents(call(stride_, tensor));
  view.data = PyLong_AsVoidPtr(call(data_ptr_, tensor).ptr());
  if (view.data == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
  return true;
}

std::optional<TensorView> PlainTensors::view_of(nb::handle tensor) const {
  const nb::handle type = tensor.type();
  if (!type.is(tensor_) && !type.is(parameter_)) return std::nullopt;
  if (!mark_.is_none() && PyObject_HasAttr(tensor.ptr(), mark_.ptr()) != 0) return std::nullopt;
  if (!layout_.of(tensor).is(strided_)) return std::nullopt;
  const std::optional<DType> dtype = dtype_of(tensor);
  if (!dtype || is_nested_.of(tensor).is(Py_True) || call(is_neg_, tensor).is(Py_True)) return std::nullopt;
  if (is_complex(*dtype) && call(is_conj_, tensor).is(Py_True)) return std::nullopt;
  std::optional<TensorView> view(std::in_place);
  view->dtype = *dtype;
  if (!read_exchange(tensor, *view) && !read_attributes(tensor, *view)) return std::nullopt;
  const auto has_elements = [&] { return std::find(view->sizes.begin(), view->sizes.end(), 0) == view->sizes.end(); };
  if (view->data == nullptr && has_elements()) return std::nullopt;  // the tensor's memory was freed
  return view;
}

nb::object PlainTensors::storage_of(nb::handle tensor) const { return call(untyped_storage_, tensor); }

}  // namespace cairn::python
