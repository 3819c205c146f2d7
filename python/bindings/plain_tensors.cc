#include "plain_tensors.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "bound.h"
#include "text.h"

namespace cairn::python {
namespace {

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

// From the begin of the storage to the end of the last element of a tensor that begins `offset` elements after the
// begin. 0 without elements, UINT64_MAX for a sum beyond 64 bits. torch has no negative strides.
std::uint64_t bytes_needed(const Extents& sizes, const Extents& strides, std::uint64_t offset,
                           std::uint64_t item_bytes) {
  std::uint64_t elements = offset + 1;
  bool overflows = false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    std::uint64_t steps = 0;
    overflows |= __builtin_mul_overflow(sizes[i] - 1, strides[i], &steps);
    overflows |= __builtin_add_overflow(elements, steps, &elements);
  }
  std::uint64_t bytes = 0;
  overflows |= __builtin_mul_overflow(elements, item_bytes, &bytes);
  return overflows ? UINT64_MAX : bytes;
}

nb::object call(const nb::object& method, nb::handle tensor) {
  nb::object result = nb::steal(PyObject_CallFunctionObjArgs(method.ptr(), tensor.ptr(), nullptr));
  if (!result.is_valid()) throw nb::python_error();
  return result;
}

Error without_memory(const std::string& key) {
  return Error(ErrorCode::kUnsupported,
               "'" + key +
                   "' has no memory of its own, like a tensor inside a transformation of torch.func or of "
                   "torch.compile; save and load outside of the transformation")
      .key(key);
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

PlainTensors::PlainTensors(const nb::dict& codes, const nb::tuple& marks, nb::object cuda_streams)
    : cuda_streams_(std::move(cuda_streams)) {
  for (const nb::handle mark : marks) {
    PyObject* name = nb::borrow(mark).release().ptr();
    PyUnicode_InternInPlace(&name);
    marks_.push_back(nb::steal(name));
  }
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
  const nb::object data = nb::steal(PyObject_CallFunctionObjArgs(data_ptr_.ptr(), tensor.ptr(), nullptr));
  if (data.is_valid()) view.data = PyLong_AsVoidPtr(data.ptr());
  if (PyErr_Occurred() == nullptr) return true;
  PyErr_Clear();  // a tensor without a storage
  return false;
}

Device PlainTensors::cuda_device(std::int32_t ordinal) const {
  const auto [place, is_new] = known_streams_.try_emplace(ordinal, 0);
  if (is_new) place->second = nb::cast<std::uintptr_t>(cuda_streams_(ordinal));
  return Device::cuda(ordinal, place->second);
}

bool PlainTensors::is_tensor(nb::handle object) const {
  const nb::handle type = object.type();
  return type.is(tensor_) || type.is(parameter_);
}

std::optional<TensorView> PlainTensors::view_of_entry(nb::handle tensor) const {
  if (!is_tensor(tensor)) return std::nullopt;
  for (const nb::object& mark : marks_) {
    if (PyObject_HasAttr(tensor.ptr(), mark.ptr()) != 0) return std::nullopt;
  }
  return view_of(tensor);
}

std::optional<TensorView> PlainTensors::view_of(nb::handle tensor) const {
  if (!is_tensor(tensor)) return std::nullopt;
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

nb::object PlainTensors::storage_of(nb::handle tensor, const Entry& entry) const {
  nb::object storage = call(untyped_storage_, tensor);
  const TensorView& view = std::get<TensorEntry>(entry.content).local;
  const auto data = reinterpret_cast<std::uintptr_t>(view.data);
  check_bounds(entry.fqn, tensor, {data, view.sizes, view.strides, item_bytes(view.dtype)}, storage);
  return storage;
}

void PlainTensors::check_memory(const std::string& key, nb::handle tensor) const {
  if (!is_cpu_.of(tensor).is(Py_True) && !is_cuda_.of(tensor).is(Py_True)) return;
  const Extents sizes = to_extents(shape_.of(tensor));
  const Extents strides = to_extents(call(stride_, tensor));
  const auto bytes = nb::cast<std::uint64_t>(call(element_size_, tensor));
  const nb::object storage = nb::steal(PyObject_CallFunctionObjArgs(untyped_storage_.ptr(), tensor.ptr(), nullptr));
  PyErr_Clear();
  const nb::object data = nb::steal(PyObject_CallFunctionObjArgs(data_ptr_.ptr(), tensor.ptr(), nullptr));
  if (!storage.is_valid() || !data.is_valid()) {
    PyErr_Clear();
    throw without_memory(key);
  }
  check_bounds(key, tensor, {nb::cast<std::uintptr_t>(data), sizes, strides, bytes}, storage);
}

void PlainTensors::check_bounds(const std::string& key, nb::handle tensor, const Layout& layout,
                                nb::handle storage) const {
  const auto offset = static_cast<std::uint64_t>(PyLong_AsSsize_t(call(storage_offset_, tensor).ptr()));
  const auto present = static_cast<std::uint64_t>(PyObject_Size(storage.ptr()));  // nbytes(), quicker
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  const std::uint64_t needed = bytes_needed(layout.sizes, layout.strides, offset, layout.item_bytes);
  if (needed > present) {
    throw Error(Error(ErrorCode::kInvalidArgument,
                      "the memory of '" + key +
                          "' was freed or shrunk by storage.resize_(), as FSDP does between the "
                          "uses of a parameter; take the state from the wrapped model's state_dict(), or resize the "
                          "storage back")
                    .key(key)
                    .expected(std::to_string(needed) + " bytes")
                    .actual(std::to_string(present) + " bytes in the storage"));
  }
  if (needed > 0 && layout.data == offset * layout.item_bytes) throw without_memory(key);  // the storage begins at 0
}

}  // namespace cairn::python
