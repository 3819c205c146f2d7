#include "format/pickle/graph.h"

#include <array>
#include <bit>
#include <cstring>

#include "core/little_endian.h"
#include "format/pickle/opcode.h"

namespace cairn::pickle {
namespace {

// The bytes of a counted opcode (text, bytes) at `offset`. The scan has checked that the bytes lie inside the input.
std::span<const std::byte> counted_bytes(std::span<const std::byte> input, std::uint64_t offset) {
  const std::span<const std::byte> operand = input.subspan(offset + 1);
  switch (std::to_integer<std::uint8_t>(input[offset])) {
    case kShortBinUnicode:
    case kShortBinString:
    case kShortBinBytes: return operand.subspan(1, load_little_endian<std::uint8_t>(operand.data()));
    case kBinUnicode:
    case kBinString:
    case kBinBytes: return operand.subspan(4, load_little_endian<std::uint32_t>(operand.data()));
    default: return operand.subspan(8, load_little_endian<std::uint64_t>(operand.data()));
  }
}

}  // namespace

Kind Graph::kind_in_input(Node node) const {
  return std::to_integer<std::uint8_t>(input_[node.rest()]) == kByteArray8 ? Kind::kByteArray : Kind::kBytes;
}

bool Graph::boolean(Node node) const { return node.tag() == Node::Tag::kTrue; }

std::int64_t Graph::long_integer(Node node) const {
  assert(node.tag() == Node::Tag::kLong);
  return std::bit_cast<std::int64_t>(arena_[node.offset()].bits());
}

double Graph::real(Node node) const {
  return std::bit_cast<double>(__builtin_bswap64(load_little_endian<std::uint64_t>(input_.data() + node.rest() + 1)));
}

std::string_view Graph::text(Node node) const {
  const std::span<const std::byte> utf8 = counted_bytes(input_, node.rest());
  return {reinterpret_cast<const char*>(utf8.data()), utf8.size()};
}

std::span<const std::byte> Graph::bytes(Node node) const {
  if (node.tag() == Node::Tag::kBigInteger) {
    const std::uint64_t place = arena_[node.offset()].bits();
    const std::uint64_t size = arena_[node.offset() + 1].bits();
    if (place != Node::kBytesFollow) return input_.subspan(place, size);
    return {reinterpret_cast<const std::byte*>(arena_.data() + node.offset() + 2), size};
  }
  return counted_bytes(input_, node.rest());
}

std::string_view Graph::module(Node node) const { return globals_[node.rest()].module; }
std::string_view Graph::name(Node node) const { return globals_[node.rest()].name; }
std::size_t Graph::global_index(Node node) const { return node.rest(); }

bool Graph::is_global(Node node, std::string_view module_name, std::string_view global_name) const {
  return node.tag() == Node::Tag::kGlobal && name(node) == global_name && module(node) == module_name;
}

Node Graph::callable(Node node) const { return node.tag() == Node::Tag::kShape ? shape_class_ : arena_[node.offset()]; }
Node Graph::arguments(Node node) const {
  return node.tag() == Node::Tag::kShape ? node.as(Node::Tag::kTupleInTuple) : arena_[node.offset() + 1];
}
Node Graph::state(Node node) const { return node.tag() == Node::Tag::kShape ? Node() : arena_[node.offset() + 2]; }
Node Graph::items(Node node) const { return node.tag() == Node::Tag::kShape ? Node() : arena_[node.offset() + 3]; }
Node Graph::persistent_id(Node node) const { return arena_[node.offset()]; }

bool Graph::makes(Node node, std::string_view module_name, std::string_view global_name) const {
  const Kind node_kind = kind(node);
  return (node_kind == Kind::kCall || node_kind == Kind::kInstance) &&
         is_global(callable(node), module_name, global_name);
}

std::optional<std::string_view> Graph::text_if(Node node) const {
  if (node.tag() != Node::Tag::kText) return std::nullopt;
  return text(node);
}

Node Graph::value_of(Node dict, std::string_view name) const {
  Node found;
  [[maybe_unused]] const Result<void> all = for_each_item(dict, [&](Node key, Node value) -> Result<void> {
    if (text_if(key) == name) found = value;
    return {};
  });
  return found;
}

}  // namespace cairn::pickle
