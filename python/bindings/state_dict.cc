// StateDict: package cairn adds tensors as integers (address, dtype code, sizes, strides). describe.cc adds plain
// tensors from tensor objects.
#include "state_dict.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <memory>
#include <optional>
#include <utility>

#include "bound.h"
#include "errors.h"
#include "text.h"
#include "values.h"

namespace cairn::python {

DType dtype_of(int code) {
  const auto dtype = code < 0 || code > 255 ? std::nullopt : dtype_from_code(static_cast<std::uint8_t>(code));
  if (!dtype) throw Error(ErrorCode::kInvalidArgument, "an unknown dtype code").actual(std::to_string(code));
  return *dtype;
}

namespace {

// The ordinal of a CUDA device and the caller's stream there; none: the CPU.
using CudaPlace = std::optional<std::pair<std::int32_t, std::uintptr_t>>;

TensorView view_of(std::uintptr_t data, int dtype, nb::handle sizes, nb::handle strides, const CudaPlace& cuda) {
  void* const address = reinterpret_cast<void*>(data);  // NOLINT(performance-no-int-to-ptr): Python hands over integers
  const Device device = cuda ? Device::cuda(cuda->first, cuda->second) : Device{};
  return {address, dtype_of(dtype), to_extents(sizes), to_extents(strides), device};
}

std::string to_string_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

const std::string& payload_of(const StateDict& state, std::size_t index) {
  const Entry& entry = state.entries().at(index);
  if (const auto* tensor = std::get_if<SerializedTensor>(&entry.content)) return tensor->payload;
  return std::get<SerializedValue>(entry.content).payload;
}

// Of the tensor that was added last.
void record_strides(StateDict& state, nb::handle strides) {
  auto recorded = std::make_shared<const Extents>(to_extents(strides));
  auto& content = state.entries().back().content;
  if (auto* const tensor = std::get_if<TensorEntry>(&content)) {
    tensor->traits.strides = std::move(recorded);
  } else {
    std::get<SerializedTensor>(content).strides = std::move(recorded);
  }
}

// (bytes of whole tensors, bytes of chunks of tensors), without the payloads
nb::tuple tensor_bytes_of(const StateDict& state) {
  std::uint64_t whole = 0;
  std::uint64_t chunks = 0;
  for (const Entry& entry : state.entries()) {
    const auto* const tensor = std::get_if<TensorEntry>(&entry.content);
    if (tensor == nullptr) continue;
    std::uint64_t bytes = item_bytes(tensor->local.dtype);
    for (const auto extent : tensor->local.sizes) bytes *= static_cast<std::uint64_t>(extent);
    (tensor->local.sizes == tensor->global_shape ? whole : chunks) += bytes;
  }
  return nb::make_tuple(whole, chunks);
}

}  // namespace

Error duplicated_key(const std::string& fqn) {
  return Error(ErrorCode::kInvalidArgument, "duplicated flatten key " + fqn).key(fqn);
}

void expect_added(const StateDict& state, Result<void> added) {
  if (added) return;
  const std::optional<std::string>& key = added.error().key();
  if (key && state.find(*key) != nullptr) {
    throw duplicated_key(*key);
  }
  unwrap(std::move(added));
}

void bind_state_dict(nb::module_& module) {
  nb::class_<StateDict>(module, "StateDict")
      .def(nb::init<>())
      .def("__len__", [](const StateDict& state) { return state.entries().size(); })
      .def(
          "add_tensor",
          [](StateDict& state, nb::handle path, std::uintptr_t data, int dtype, nb::handle sizes, nb::handle strides,
             bool requires_grad, const CudaPlace& cuda) {
            expect_added(state, state.add_tensor(to_path(path), view_of(data, dtype, sizes, strides, cuda),
                                                 {.requires_grad = requires_grad}));
          },
          nb::arg("path"), nb::arg("data"), nb::arg("dtype"), nb::arg("sizes"), nb::arg("strides"),
          nb::arg("requires_grad"), nb::arg("cuda").none() = nb::none())
      .def(
          "add_chunk",
          [](StateDict& state, nb::handle path, std::uintptr_t data, int dtype, nb::handle sizes, nb::handle strides,
             bool requires_grad, nb::handle global_shape, nb::handle offsets, bool replicated, const CudaPlace& cuda) {
            unwrap(state.add_chunk(to_path(path), view_of(data, dtype, sizes, strides, cuda), to_extents(global_shape),
                                   to_extents(offsets), {.requires_grad = requires_grad, .replicated = replicated}));
          },
          nb::arg("path"), nb::arg("data"), nb::arg("dtype"), nb::arg("sizes"), nb::arg("strides"),
          nb::arg("requires_grad"), nb::arg("global_shape"), nb::arg("offsets"), nb::arg("replicated") = false,
          nb::arg("cuda").none() = nb::none())
      .def(
          "add_value",
          [](StateDict& state, nb::handle path, nb::handle object) {
            std::optional<Value> value = to_value(object);
            if (!value) return false;
            expect_added(state, state.add_value(to_path(path), std::move(*value)));
            return true;
          },
          nb::arg("path"), nb::arg("value").none())
      .def("add_serialized_value",
           [](StateDict& state, nb::handle path, const nb::bytes& payload) {
             expect_added(state, state.add_serialized(to_path(path), SerializedValue{to_string_of(payload)}));
           })
      .def("add_serialized_tensor",
           [](StateDict& state, nb::handle path, const nb::bytes& payload, int dtype, nb::handle shape,
              bool requires_grad) {
             SerializedTensor tensor{to_string_of(payload), dtype_of(dtype), to_extents(shape), requires_grad};
             expect_added(state, state.add_serialized(to_path(path), std::move(tensor)));
           })
      .def("add_serialized_chunk",
           [](StateDict& state, nb::handle path, const nb::bytes& payload, int dtype, nb::handle shape,
              bool requires_grad, const nb::tuple& box) {
             SerializedTensor tensor{to_string_of(payload), dtype_of(dtype), to_extents(shape), requires_grad,
                                     unwrap(Box::make(to_extents(box[0]), to_extents(box[1])))};
             unwrap(state.add_serialized(to_path(path), std::move(tensor)));
           })
      .def("record_strides", &record_strides)
      .def("tensor_bytes", &tensor_bytes_of)
      .def("fqn", [](const StateDict& state, std::size_t index) { return to_str(state.entries().at(index).fqn); })
      .def("fqns",
           [](const StateDict& state) {
             nb::list fqns;
             for (const Entry& entry : state.entries()) fqns.append(to_str(entry.fqn));
             return fqns;
           })
      .def("payload", [](const StateDict& state, std::size_t index) {
        const std::string& payload = payload_of(state, index);
        return nb::bytes(payload.data(), payload.size());
      });
}

}  // namespace cairn::python
