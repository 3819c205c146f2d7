// The function of DLPack's exchange table that tells of a Python tensor where its elements are; torch has it from 2.10.
//
// The layout of the table is DLPack's (dlpack.h, version 1): a C ABI, so nobody is linked.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace nb = nanobind;

namespace cairn::python {

// Fills `out` with what the tensor, of the class that was asked, owns itself; -1, and a Python exception, if DLPack
// can't describe it.
using DlpackReader = int (*)(void* tensor, nb::dlpack::dltensor* out);

// That of a class of tensors; null if it has none.
inline DlpackReader dlpack_reader_of(nb::handle type) {
  struct Table {
    std::uint32_t major;
    std::uint32_t minor;
    const Table* older;  // of another major version
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
