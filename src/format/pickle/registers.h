// Registers: the position of the pickle machine. Kept in the processor's registers: no code takes the address of a
// Registers.
#pragma once

#include <cstddef>

#include "format/pickle/node.h"

namespace cairn::pickle {

// The alignment keeps the members apart in memory: compilers would otherwise keep two members in one vector register,
// which is slow.
struct Registers {
  alignas(16) const std::byte* at;  // behind the current opcode
  alignas(16) Node* top;            // behind the top object of the stack
  alignas(16) Node* fence;          // objects below belong to an older mark
  std::size_t depth() const { return static_cast<std::size_t>(top - fence); }
};

}  // namespace cairn::pickle
