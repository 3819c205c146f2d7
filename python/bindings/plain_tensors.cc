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

// Shorter runs are copied row by row at less than half the speed of the bus (44 of 55 GB/s at 64 bytes, 12 at 16).
constexpr std::uint64_t kDeviceRunBytesMin = 64;

// The bytes of the view that lie together, in row-major order; all bytes of a contiguous view count as
// kDeviceRunBytesMin at least.
std::uint64_t run_bytes(const TensorView& view) {
  std::int64_t run = 1;  // elements
  for (std::size_t i = view.sizes.size(); i-- > 0;) {
    if (view.sizes[i] == 1) continue;
    if (view.strides[i] != run) return static_cast<std::uint64_t>(run) * item_bytes(view.dtype);
    run *= view.sizes[i];
  }
  return kDeviceRunBytesMin;
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

PlainTensors::PlainTensors(const nb::dict& codes, nb::object mark, nb::object cuda_streams)
    : mark_(std::move(mark)), cuda_streams_(std::move(cuda_streams)) {
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
  const bool is_cuda = exchanged.device.device_type == nb::device::cuda::value && !cuda_streams_.is_none();
  if ((exchanged.device.device_type != nb::device::cpu::value && !is_cuda) || !has_strides) return false;
  if (is_cuda) view.device = cuda_device(exchanged.device.device_id);
  view.data = static_cast<std::byte*>(exchanged.data) + exchanged.byte_offset;
  view.sizes = Extents(std::span<const std::int64_t>(exchanged.shape, dimensions));
  view.strides = Extents(std::span<const std::int64_t>(exchanged.strides, dimensions));
  return true;
}

bool PlainTensors::read_attributes(nb::handle tensor, TensorView& view) const {
  const bool is_cuda = !cuda_streams_.is_none() && is_cuda_.of(tensor).is(Py_True);
  if (!is_cuda && !is_cpu_.of(tensor).is(Py_True)) return false;
  if (is_cuda) view.device = cuda_device(nb::cast<std::int32_t>(call(get_device_, tensor)));
  view.sizes = to_extents(shape_.of(tensor));
  view.strides = to_extents(call(stride_, tensor));
  view.data = PyLong_AsVoidPtr(call(data_ptr_, tensor).ptr());
  if (view.data == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
  return true;
}

Device PlainTensors::cuda_device(std::int32_t ordinal) const {
  const auto [place, is_new] = known_streams_.try_emplace(ordinal, 0);
  if (is_new) place->second = nb::cast<std::uintptr_t>(cuda_streams_(ordinal));
  return Device::cuda(ordinal, place->second);
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
  if (!view->device.is_cpu() && has_elements() && run_bytes(*view) < kDeviceRunBytesMin) return std::nullopt;
  return view;
}

nb::object PlainTensors::storage_of(nb::handle tensor) const { return call(untyped_storage_, tensor); }

}  // namespace cairn::python
