#include "format/pickle/graph.h"

#include <array>
#include <bit>
#include <cstring>

#include "core/little_endian.h"
#include "format/pickle/opcode.h"

namespace cairn::pickle {
namespace {

// The bytes of a counted opcode (text, bytes, long) at `offset`. The scan has checked that they lie inside.
std::span<const std::byte> counted_bytes(std::span<const std::byte> input, std::uint64_t offset) {
  const std::span<const std::byte> operand = input.subspan(offset + 1);
  switch (std::to_integer<std::uint8_t>(input[offset])) {
    case kShortBinUnicode:
    case kShortBinBytes:
    case kLong1: return operand.subspan(1, load_little_endian<std::uint8_t>(operand.data()));
    case kBinUnicode:
    case kBinBytes:
    case kLong4: return operand.subspan(4, load_little_endian<std::uint32_t>(operand.data()));
    default: return operand.subspan(8, load_little_endian<std::uint64_t>(operand.data()));
  }
}

// Without the bytes that only repeat the sign.
std::span<const std::byte> shortest(std::span<const std::byte> number) {
  while (number.size() > 1) {
    const auto last = std::to_integer<unsigned>(number.back());
    const bool negative = (number[number.size() - 2] & std::byte{0x80}) != std::byte{0};
    if (last != (negative ? 0xFFu : 0u)) break;
    number = number.first(number.size() - 1);
  }
  return number;
}

}  // namespace

Kind Graph::kind_in_input(Node node) const {
  if (node.tag() == Node::Tag::kLong) {
    return bytes(node).size() <= sizeof(std::int64_t) ? Kind::kInteger : Kind::kBigInteger;
  }
  return std::to_integer<std::uint8_t>(input_[node.rest()]) == kByteArray8 ? Kind::kByteArray : Kind::kBytes;
}

bool Graph::boolean(Node node) const { return node.tag() == Node::Tag::kTrue; }

std::int64_t Graph::long_integer(Node node) const {
  const std::span<const std::byte> number = bytes(node);
  assert(number.size() <= sizeof(std::int64_t));
  const bool negative = !number.empty() && (number.back() & std::byte{0x80}) != std::byte{0};
  std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
  std::memcpy(&value, number.data(), number.size());
  return std::bit_cast<std::int64_t>(value);
}

double Graph::real(Node node) const {
  return std::bit_cast<double>(__builtin_bswap64(load_little_endian<std::uint64_t>(input_.data() + node.rest() + 1)));
}

std::string_view Graph::text(Node node) const {
  const std::span<const std::byte> utf8 = counted_bytes(input_, node.rest());
  return {reinterpret_cast<const char*>(utf8.data()), utf8.size()};
}

std::span<const std::byte> Graph::bytes(Node node) const {
  const std::span<const std::byte> data = counted_bytes(input_, node.rest());
  return node.tag() == Node::Tag::kLong ? shortest(data) : data;
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

}  // namespace cairn::pickle
