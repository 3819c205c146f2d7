// write_value: a plain Value as opcodes of a pickle.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstdint>

#include "format/pickle/graph_writer.h"
#include "format/pickle/writer.h"

namespace cairn::pickle {

// Writes tensors, whose bytes the pickle's container stores outside the pickle.
class TensorWriter {
 public:
  virtual ~TensorWriter() = default;
  virtual Result<void> write_tensor(Writer& writer, const Array& tensor) = 0;
  // Returns whether the writer has a form of its own for the Object, and has written the Object.
  virtual Result<bool> write_object(Writer& writer, const Object& object) = 0;
  // Returns whether the writer has a form of its own for every part of this identity (Value::identity()), and has
  // written the part. Called with a memo alone, once for an identity that the memo keeps.
  virtual Result<bool> write_identity(Writer& /*writer*/, std::uint64_t /*identity*/) { return false; }
};

// Pushes `value`. Protocol 2 uses names that torch.load(weights_only=True) accepts, for every value that weights_only
// loads at all. Fails with kUnsupported on a tensor if `tensors` is null, on a NumPy array of a dtype that NumPy lacks,
// and on values nested deeper than kValueDepthMax (value_reader.h). With a `memo`, all identities in `value` are nodes
// of one graph: parts of one identity are written once, and stay one object. `keeps_all`: nodes that write_node()
// writes with `memo` may refer to any part.
Result<void> write_value(Writer& writer, const Value& value, TensorWriter* tensors = nullptr, NodeMemo* memo = nullptr,
                         bool keeps_all = false);

}  // namespace cairn::pickle
