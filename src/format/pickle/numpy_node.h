// NumPy arrays and scalars in a pickle: reads and writes NumPy's reduced form.
//
// Pure. Plain dtypes only: booleans, integers, floats and complex numbers, little endian.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>
#include <cairn/tensor.h>

#include <optional>
#include <string>

#include "core/byte_budget.h"
#include "format/pickle/graph.h"
#include "format/pickle/writer.h"

namespace cairn::pickle {

// The content of a node that represents bytes: a bytes object, a bytearray opcode, or the call `_codecs.encode(text,
// "latin1")`, by which protocol 2 writes bytes. Nullopt for all other nodes. Fails if `budget` does not have the bytes.
Result<std::optional<std::string>> bytes_of(const Graph& graph, Node node, ByteBudget& budget);

// Nullopt unless `node` is the call that makes a NumPy array or scalar of a plain dtype, with as many bytes as the
// shape needs. Fails if `budget` does not have the array's bytes.
Result<std::optional<Array>> read_numpy_node(const Graph& graph, Node node, ByteBudget& budget);

// Pushes bytes in a form that the writer's protocol and torch.load(weights_only=True) understand.
void write_bytes(Writer& writer, const std::string& data);

// Pushes a NumPy array or scalar; kUnsupported if NumPy lacks the dtype.
Result<void> write_numpy(Writer& writer, const Array& array);

}  // namespace cairn::pickle
