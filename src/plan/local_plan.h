// LocalPlan: what one rank could write of a state that many ranks save together.
//
// A value; names are views, so the plan lives no longer than the memory that they look into.
#pragma once

#include <cairn/box.h>
#include <cairn/dtype.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace cairn::plan {

// One item that a rank could write.
struct LocalItem {
  enum class Kind : std::uint8_t {
    kTensor,            // a chunk of a tensor, written from memory
    kSerializedTensor,  // a whole tensor as a `torch.save` archive: never cut
    kValue,             // a value as a `torch.save` archive: never cut
  };

  std::string_view fqn;  // memory of the caller
  Kind kind = Kind::kTensor;
  DType dtype = DType::kFloat32;  // not looked at for a value
  bool requires_grad = false;     // may differ from rank to rank; DCP records what the lowest rank that writes says
  // Declared equal on every rank that has it (DTensor's Replicate, HSDP): several ranks may each write a part of it.
  bool replicated = false;
  std::uint64_t bytes = 0;  // payload
  Extents shape;            // of the whole tensor; not looked at for a value
  Box box;                  // of a chunk: its place in the tensor; not looked at for the other kinds
};

// In the rank's own order.
using LocalPlan = std::vector<LocalItem>;

}  // namespace cairn::plan
