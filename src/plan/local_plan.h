// LocalPlan: the items of one rank, for a state that many ranks save together.
//
// A value. The names are views: the memory of the names must outlive the plan.
#pragma once

#include <cairn/tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace cairn::plan {

// One item that a rank could write.
struct LocalItem {
  enum class Kind : std::uint8_t {
    kTensor,            // a chunk of a tensor, written from memory
    kSerializedTensor,  // a chunk of a tensor as a `torch.save` archive: never cut
    kValue,             // a value as a `torch.save` archive: never cut
  };

  std::string_view fqn;  // memory of the caller
  Kind kind = Kind::kTensor;
  DType dtype = DType::kFloat32;  // ignored for a value
  bool requires_grad = false;     // may differ between ranks; DCP records the value of the lowest writing rank
  // Declared equal on every rank that has the tensor (DTensor's Replicate, HSDP): several ranks may each write a part.
  bool replicated = false;
  std::uint32_t strides = 0;  // to be recorded: a number of the plans' ExtentsTable; as with requires_grad, the lowest
                              // writing rank decides
  std::uint64_t bytes = 0;    // payload
  Extents shape;              // of the whole tensor; ignored for a value
  Box box;                    // of a chunk: its place in the tensor; ignored for a value
};

// In the rank's own order.
using LocalPlan = std::vector<LocalItem>;

}  // namespace cairn::plan
