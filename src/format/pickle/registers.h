// Registers: where the pickle machine stands. They live in registers of the processor: nothing takes their address.
#pragma once

#include <cstddef>

#include "format/pickle/node.h"

namespace cairn::pickle {

// Not side by side in memory: compilers would then keep two of them in one vector register, and be slow at it.
struct Registers {
  alignas(16) const std::byte* at;  // behind the opcode that is being carried out
  alignas(16) Node* top;            // behind the last thing on the stack
  alignas(16) Node* fence;          // what lies below belongs to an older mark
  std::size_t depth() const { return static_cast<std::size_t>(top - fence); }
};

}  // namespace cairn::pickle
