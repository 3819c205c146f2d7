// DlpackReader: the function in DLPack's exchange table that reads the address of a Python tensor's elements. torch has
// the table since 2.10.
//
// The layout of the table is DLPack's (dlpack.h, version 1), a C ABI: Cairn links no library for the call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace nb = nanobind;

namespace cairn::python {

// Fills `out` with views of the tensor's own memory. `tensor` is an instance of the class with the table. Returns -1,
// with a Python exception, if DLPack can't describe the tensor.
using DlpackReader = int (*)(void* tensor, nb::dlpack::dltensor* out);

// The reader of a class of tensors; null if the class has no table.
inline DlpackReader dlpack_reader_of(nb::handle type) {
  struct Table {
    std::uint32_t major;
    std::uint32_t minor;
    const Table* older;  // a table of an older major version
    void (*allocate)();
    void (*export_owned)();
    void (*import_owned)();
    DlpackReader read;
    void (*work_stream)();
  };
  const char* const attribute = "__dlpack_c_exchange_api__";
  if (!nb::hasattr(type, attribute)) return nullptr;
  const nb::object capsule = type.attr(attribute);
  const char* const name = "dlpack_exchange_api";
  if (PyCapsule_IsValid(capsule.ptr(), name) == 0) return nullptr;
  const auto* table = static_cast<const Table*>(PyCapsule_GetPointer(capsule.ptr(), name));
  while (table != nullptr && table->major != 1) table = table->older;
  return table == nullptr ? nullptr : table->read;
}

}  // namespace cairn::python
