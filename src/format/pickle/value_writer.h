// write_value: a plain Value as opcodes of a pickle.
#pragma once

#include <cairn/result.h>
#include <cairn/value.h>

#include "format/pickle/writer.h"

namespace cairn::pickle {

// Writes what only the container of a pickle can: tensors, whose bytes lie beside the pickle.
class TensorWriter {
 public:
  virtual ~TensorWriter() = default;
  virtual Result<void> write_tensor(Writer& writer, const Array& tensor) = 0;
};

// Pushes `value`. In protocol 2 with the names that torch.load(weights_only=True) takes wherever it takes the value at
// all. Fails with kUnsupported on a tensor without a `tensors`, on a NumPy array of a dtype that NumPy lacks, and on
// values nested deeper than kValueDepthMax (value_reader.h).
Result<void> write_value(Writer& writer, const Value& value, TensorWriter* tensors = nullptr);

}  // namespace cairn::pickle
