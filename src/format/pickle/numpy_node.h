// NumPy arrays and scalars in a pickle: how NumPy describes them, in both directions.
//
// Pure. Plain dtypes only: booleans, integers, floats and complex numbers, little endian.
#pragma once

#include <cairn/dtype.h>
#include <cairn/result.h>
#include <cairn/value.h>

#include <optional>
#include <string>

#include "core/byte_budget.h"
#include "format/pickle/graph.h"
#include "format/pickle/writer.h"

namespace cairn::pickle {

// The content of a node that stands for bytes: a bytes object, a bytearray opcode, or the `_codecs.encode(text,
// "latin1")` that protocol 2 writes instead. Nullopt for anything else. Fails if `budget` does not have the bytes.
Result<std::optional<std::string>> bytes_of(const Graph& graph, Node node, ByteBudget& budget);

// Nullopt if `node` is not the making of a NumPy array or scalar of a plain dtype with as many bytes as it needs. Fails
// if `budget` does not have them.
Result<std::optional<Array>> read_numpy_node(const Graph& graph, Node node, ByteBudget& budget);

// Pushes bytes in the way that the writer's protocol and torch.load(weights_only=True) understand.
void write_bytes(Writer& writer, const std::string& data);

// Pushes a NumPy array or scalar; kUnsupported if NumPy has no such dtype.
Result<void> write_numpy(Writer& writer, const Array& array);

}  // namespace cairn::pickle
