#include "format/pickle/numpy_node.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "core/checked.h"

namespace cairn::pickle {
namespace {

struct NumpyName {
  std::string_view name;
  DType dtype;
};
constexpr std::array kNumpyNames = {
    NumpyName{"b1", DType::kBool},      NumpyName{"i1", DType::kInt8},        NumpyName{"i2", DType::kInt16},
    NumpyName{"i4", DType::kInt32},     NumpyName{"i8", DType::kInt64},       NumpyName{"u1", DType::kUInt8},
    NumpyName{"u2", DType::kUInt16},    NumpyName{"u4", DType::kUInt32},      NumpyName{"u8", DType::kUInt64},
    NumpyName{"f2", DType::kFloat16},   NumpyName{"f4", DType::kFloat32},     NumpyName{"f8", DType::kFloat64},
    NumpyName{"c8", DType::kComplex64}, NumpyName{"c16", DType::kComplex128},
};

// The module name that Cairn writes. NumPy before 1.26 knows no other name, and NumPy 2 accepts the name in pickles
// without a warning.
constexpr std::string_view kMultiarray = "numpy.core.multiarray";

bool is_multiarray(std::string_view module) { return module == kMultiarray || module == "numpy._core.multiarray"; }
bool is_numeric(std::string_view module) { return module == "numpy._core.numeric" || module == "numpy.core.numeric"; }

template <std::size_t Count>
std::optional<std::array<Node, Count>> exactly(const Graph& graph, Node node) {
  if (!graph.is(node, Kind::kTuple)) return std::nullopt;
  const Elements range = graph.elements(node);
  if (range.size() != Count) return std::nullopt;
  std::array<Node, Count> nodes;
  std::size_t i = 0;
  for (const Node element : range) nodes[i++] = element;
  return nodes;
}

// numpy.dtype("f4", False, True) with the state (3, "<", None, None, None, -1, -1, 0).
std::optional<DType> read_dtype(const Graph& graph, Node node) {
  if (!graph.makes(node, "numpy", "dtype")) return std::nullopt;
  const Elements arguments = graph.elements(graph.arguments(node));
  const Node state = graph.state(node);
  if (arguments.empty() || !state.is_set() || !graph.is(state, Kind::kTuple) || graph.items(node).is_set())
    return std::nullopt;
  const std::optional<std::string_view> name = graph.text_if(arguments.front());
  const Elements parts = graph.elements(state);
  constexpr std::size_t kPartsMax = 9;  // NumPy writes 8, or 9 with metadata
  if (!name || parts.size() < 2 || parts.size() > kPartsMax) return std::nullopt;
  std::size_t i = 0;
  for (const Node part : parts) {
    if (i == 1) {
      const std::optional<std::string_view> order = graph.text_if(part);
      if (order != "<" && order != "|") return std::nullopt;
    }
    const bool describes_structure = i >= 2 && i <= 4;  // sub-array, field names, fields
    if (describes_structure && !graph.is(part, Kind::kNone)) return std::nullopt;
    ++i;
  }
  const auto found =
      std::find_if(kNumpyNames.begin(), kNumpyNames.end(), [&](const NumpyName& n) { return n.name == *name; });
  if (found == kNumpyNames.end()) return std::nullopt;
  return found->dtype;
}

std::optional<Extents> read_extents(const Graph& graph, Node node) {
  if (!graph.is(node, Kind::kTuple)) return std::nullopt;
  const Elements range = graph.elements(node);
  if (range.size() > kDimensionsMax) return std::nullopt;
  Extents shape(range.size(), 0);
  std::size_t i = 0;
  for (const Node element : range) {
    const std::optional<std::int64_t> size = graph.integer_if(element);
    if (!size) return std::nullopt;
    shape[i++] = *size;
  }
  return shape;
}

// Copies column-major elements into row-major order.
std::string row_major(const std::string& column_major, const Extents& shape, std::size_t item) {
  std::string out(column_major.size(), '\0');
  std::vector<std::int64_t> index(shape.size(), 0);
  for (std::size_t to = 0; to < out.size(); to += item) {
    std::size_t from = 0;
    std::size_t stride = item;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      from += static_cast<std::size_t>(index[d]) * stride;
      stride *= static_cast<std::size_t>(shape[d]);
    }
    std::copy_n(column_major.data() + from, item, out.data() + to);
    for (std::size_t d = shape.size(); d-- > 0 && ++index[d] == shape[d];) index[d] = 0;
  }
  return out;
}

using MaybeArray = std::optional<Array>;

// The layout of an array's elements in its bytes.
struct ElementOrder {
  DType dtype;
  Extents shape;
  bool is_column_major = false;
};

// The array with the bytes of `data_node`; nullopt if the number of bytes does not fit the shape.
Result<MaybeArray> make_array(ElementOrder order, const Graph& graph, Node data_node, ByteBudget& budget) {
  auto& [dtype, shape, is_column_major] = order;
  const Result<std::int64_t> count = element_count(shape);
  if (!count) return MaybeArray();
  const auto bytes = checked_multiply(static_cast<std::uint64_t>(*count), std::uint64_t{item_bytes(dtype)});
  CAIRN_TRY(budget.charge(sizeof(Array) + shape.size() * sizeof(std::int64_t)));
  CAIRN_TRY_ASSIGN(std::optional<std::string> data, bytes_of(graph, data_node, budget));
  if (!data || !bytes || *bytes != data->size()) return MaybeArray();
  if (is_column_major && shape.size() > 1) {
    CAIRN_TRY(budget.charge(data->size()));
    data = row_major(*data, shape, item_bytes(dtype));
  }
  return MaybeArray(Array{Array::Kind::kNumpyArray, dtype, std::move(shape), std::move(*data)});
}

// _reconstruct(ndarray, (0,), b"b") with the state (1, shape, dtype, is_fortran, data).
Result<MaybeArray> read_reconstruct(const Graph& graph, Node node, ByteBudget& budget) {
  const auto arguments = exactly<3>(graph, graph.arguments(node));
  if (!arguments || !graph.is_global((*arguments)[0], "numpy", "ndarray")) return MaybeArray();
  if (!graph.state(node).is_set() || graph.items(node).is_set()) return MaybeArray();
  const auto state = exactly<5>(graph, graph.state(node));
  if (!state) return MaybeArray();
  const auto& [version, shape_node, dtype_node, order, data_node] = *state;
  const std::optional<DType> dtype = read_dtype(graph, dtype_node);
  std::optional<Extents> shape = read_extents(graph, shape_node);
  if (!dtype || !shape || !graph.is(order, Kind::kBool)) return MaybeArray();
  return make_array({*dtype, std::move(*shape), graph.boolean(order)}, graph, data_node, budget);
}

// The argument of the call `bytearray(data)`, in which a pickle of an earlier protocol has the bytearray of protocol 5;
// else `node` itself.
Node bytes_of_bytearray(const Graph& graph, Node node) {
  const bool is_call = graph.is(node, Kind::kCall) &&
                       (graph.makes(node, "builtins", "bytearray") || graph.makes(node, "__builtin__", "bytearray"));
  if (!is_call || graph.state(node).is_set() || graph.items(node).is_set()) return node;
  const auto arguments = exactly<1>(graph, graph.arguments(node));
  return arguments ? (*arguments)[0] : node;
}

// _frombuffer(data, dtype, shape, "C"), which protocol 5 writes.
Result<MaybeArray> read_from_buffer(const Graph& graph, Node node, ByteBudget& budget) {
  const auto arguments = exactly<4>(graph, graph.arguments(node));
  if (!arguments || graph.state(node).is_set() || graph.items(node).is_set()) return MaybeArray();
  const auto& [buffer_node, dtype_node, shape_node, order_node] = *arguments;
  const Node data_node = bytes_of_bytearray(graph, buffer_node);
  const std::optional<DType> dtype = read_dtype(graph, dtype_node);
  std::optional<Extents> shape = read_extents(graph, shape_node);
  const std::optional<std::string_view> order = graph.text_if(order_node);
  if (!dtype || !shape || (order != "C" && order != "F")) return MaybeArray();
  return make_array({*dtype, std::move(*shape), order == "F"}, graph, data_node, budget);
}

// scalar(dtype, data)
Result<MaybeArray> read_scalar(const Graph& graph, Node node, ByteBudget& budget) {
  const auto arguments = exactly<2>(graph, graph.arguments(node));
  if (!arguments || graph.state(node).is_set() || graph.items(node).is_set()) return MaybeArray();
  const std::optional<DType> dtype = read_dtype(graph, (*arguments)[0]);
  if (!dtype) return MaybeArray();
  CAIRN_TRY_ASSIGN(MaybeArray scalar, make_array({*dtype, {}, false}, graph, (*arguments)[1], budget));
  if (scalar) scalar->kind = Array::Kind::kNumpyScalar;
  return scalar;
}

// Converts UTF-8 to Latin-1, a byte per character. Nullopt if a character is above 255.
std::optional<std::string> latin1_of(std::string_view utf8) {
  std::string out;
  out.reserve(utf8.size());
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    const auto lead = static_cast<unsigned char>(utf8[i]);
    if (lead < 0x80) {
      out += utf8[i];
      continue;
    }
    if ((lead != 0xC2 && lead != 0xC3) || i + 1 == utf8.size()) return std::nullopt;
    const auto trail = static_cast<unsigned char>(utf8[++i]);
    if ((trail & 0xC0) != 0x80) return std::nullopt;
    out += static_cast<char>(((lead & 3) << 6) | (trail & 0x3F));
  }
  return out;
}

std::string utf8_of(std::string_view latin1) {
  std::string out;
  out.reserve(latin1.size() + latin1.size() / 2);
  for (const char c : latin1) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      out += c;
    } else {
      out += static_cast<char>(0xC0 | (byte >> 6));
      out += static_cast<char>(0x80 | (byte & 0x3F));
    }
  }
  return out;
}

void write_dtype(Writer& writer, std::string_view name) {
  writer.global("numpy", "dtype");
  writer.shared_text(name);
  writer.boolean(false);
  writer.boolean(true);
  writer.tuple(3);
  writer.reduce();
  writer.mark();
  writer.integer(3);
  writer.shared_text(name.back() == '1' ? "|" : "<");
  for (int i = 0; i < 3; ++i) writer.none();
  writer.integer(-1);
  writer.integer(-1);
  writer.integer(0);
  writer.tuple_since_mark();
  writer.build();
}

}  // namespace

Result<std::optional<std::string>> bytes_of(const Graph& graph, Node node, ByteBudget& budget) {
  using Maybe = std::optional<std::string>;
  const Kind kind = graph.kind(node);
  if (kind == Kind::kBytes || kind == Kind::kByteArray) {
    const std::span<const std::byte> data = graph.bytes(node);
    CAIRN_TRY(budget.charge(heap_bytes(data.size())));
    return Maybe(std::string(reinterpret_cast<const char*>(data.data()), data.size()));
  }
  if (kind != Kind::kCall || graph.state(node).is_set() || graph.items(node).is_set()) return Maybe();
  if (graph.makes(node, "__builtin__", "bytes") || graph.makes(node, "builtins", "bytes")) {
    return graph.elements(graph.arguments(node)).empty() ? Maybe(std::string()) : Maybe();
  }
  if (!graph.makes(node, "_codecs", "encode")) return Maybe();
  const auto arguments = exactly<2>(graph, graph.arguments(node));
  if (!arguments) return Maybe();
  const std::optional<std::string_view> text = graph.text_if((*arguments)[0]);
  const std::optional<std::string_view> encoding = graph.text_if((*arguments)[1]);
  if (!text || (encoding != "latin1" && encoding != "latin-1")) return Maybe();
  CAIRN_TRY(budget.charge(heap_bytes(text->size())));
  return latin1_of(*text);
}

Result<std::optional<Array>> read_numpy_node(const Graph& graph, Node node, ByteBudget& budget) {
  if (!graph.is(node, Kind::kCall) || !graph.is(graph.callable(node), Kind::kGlobal)) return MaybeArray();
  const std::string_view module = graph.module(graph.callable(node));
  const std::string_view name = graph.name(graph.callable(node));
  if (is_multiarray(module) && name == "_reconstruct") return read_reconstruct(graph, node, budget);
  if (is_multiarray(module) && name == "scalar") return read_scalar(graph, node, budget);
  if (is_numeric(module) && name == "_frombuffer") return read_from_buffer(graph, node, budget);
  return MaybeArray();
}

void write_bytes(Writer& writer, const std::string& data) {
  constexpr int kFirstProtocolWithBytes = 3;
  if (writer.protocol() >= kFirstProtocolWithBytes) return writer.bytes(data);
  writer.global("_codecs", "encode");
  writer.text(utf8_of(data));
  writer.shared_text("latin1");
  writer.tuple(2);
  writer.reduce();
}

Result<void> write_numpy(Writer& writer, const Array& array) {
  const auto known =
      std::find_if(kNumpyNames.begin(), kNumpyNames.end(), [&](const NumpyName& n) { return n.dtype == array.dtype; });
  if (known == kNumpyNames.end()) {
    return Error(ErrorCode::kUnsupported, "NumPy has no such dtype").actual(name_of(array.dtype));
  }
  if (array.kind == Array::Kind::kNumpyScalar) {
    writer.global(kMultiarray, "scalar");
    write_dtype(writer, known->name);
    write_bytes(writer, array.data);
    writer.tuple(2);
    writer.reduce();
    return {};
  }
  writer.global(kMultiarray, "_reconstruct");
  writer.global("numpy", "ndarray");
  writer.integer(0);
  writer.tuple(1);
  write_bytes(writer, "b");
  writer.tuple(3);
  writer.reduce();
  writer.mark();
  writer.integer(1);
  writer.mark();
  for (const std::int64_t size : array.shape) writer.integer(size);
  writer.tuple_since_mark();
  write_dtype(writer, known->name);
  writer.boolean(false);
  write_bytes(writer, array.data);
  writer.tuple_since_mark();
  writer.build();
  return {};
}

}  // namespace cairn::pickle
