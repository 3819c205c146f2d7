#include "format/pickle/writer.h"

#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "format/pickle/opcode.h"

namespace cairn::pickle {
namespace {

constexpr int kFirstProtocolWithShortText = 4;
constexpr std::size_t kShortMax = std::numeric_limits<std::uint8_t>::max();
constexpr std::size_t kMediumMax = std::numeric_limits<std::uint32_t>::max();

// Appends an opcode and the opcode's operand.
template <typename T>
void put_opcode(std::string& out, std::uint8_t opcode, T operand) {
  std::array<char, 1 + sizeof(T)> bytes;
  bytes[0] = static_cast<char>(opcode);
  std::memcpy(bytes.data() + 1, &operand, sizeof(T));
  out.append(bytes.data(), bytes.size());
}

}  // namespace

Writer::Writer(int protocol) : protocol_(protocol) { put_opcode(out_, kProto, static_cast<std::uint8_t>(protocol)); }

void Writer::integer(std::int64_t value) {
  if (value >= 0 && value <= std::numeric_limits<std::uint8_t>::max()) {
    put_opcode(out_, kBinInt1, static_cast<std::uint8_t>(value));
  } else if (value >= 0 && value <= std::numeric_limits<std::uint16_t>::max()) {
    put_opcode(out_, kBinInt2, static_cast<std::uint16_t>(value));
  } else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
    put_opcode(out_, kBinInt, static_cast<std::int32_t>(value));
  } else {
    std::size_t bytes = sizeof value;  // the fewest bytes that keep the sign
    while (bytes > 1 && value >> (8 * (bytes - 1) - 1) == (value < 0 ? -1 : 0)) --bytes;
    put_opcode(out_, kLong1, static_cast<std::uint8_t>(bytes));
    out_.append(reinterpret_cast<const char*>(&value), bytes);
  }
}

void Writer::big_integer(std::string_view twos_complement) {
  if (twos_complement.size() <= kShortMax) {
    put_opcode(out_, kLong1, static_cast<std::uint8_t>(twos_complement.size()));
  } else {
    put_opcode(out_, kLong4, static_cast<std::uint32_t>(twos_complement.size()));
  }
  out_.append(twos_complement);
}

void Writer::real(double value) { put_opcode(out_, kBinFloat, __builtin_bswap64(std::bit_cast<std::uint64_t>(value))); }

void Writer::text(std::string_view utf8) {
  if (utf8.size() <= kShortMax && protocol_ >= kFirstProtocolWithShortText) {
    put_opcode(out_, kShortBinUnicode, static_cast<std::uint8_t>(utf8.size()));
  } else if (utf8.size() <= kMediumMax) {
    put_opcode(out_, kBinUnicode, static_cast<std::uint32_t>(utf8.size()));
  } else {
    put_opcode(out_, kBinUnicode8, std::uint64_t{utf8.size()});
  }
  out_.append(utf8);
}

void Writer::bytes(std::string_view data) {
  if (data.size() <= kShortMax) {
    put_opcode(out_, kShortBinBytes, static_cast<std::uint8_t>(data.size()));
  } else if (data.size() <= kMediumMax) {
    put_opcode(out_, kBinBytes, static_cast<std::uint32_t>(data.size()));
  } else {
    put_opcode(out_, kBinBytes8, std::uint64_t{data.size()});
  }
  out_.append(data);
}

void Writer::global(std::string_view module, std::string_view name) {
  std::pair<std::string, std::string> key(module, name);
  if (const auto known = globals_.find(key); known != globals_.end()) return reference(known->second);
  if (protocol_ >= kFirstProtocolWithShortText) {
    shared_text(module);
    shared_text(name);
    op(static_cast<char>(kStackGlobal));
  } else {
    op(static_cast<char>(kGlobal));
    out_.append(module).append("\n").append(name).append("\n");
  }
  globals_.emplace(std::move(key), memoize());
}

void Writer::shared_text(std::string_view utf8) {
  std::string key(utf8);
  if (const auto known = texts_.find(key); known != texts_.end()) return reference(known->second);
  text(utf8);
  texts_.emplace(std::move(key), memoize());
}

void Writer::empty_set() { op(static_cast<char>(kEmptySet)); }

void Writer::tuple(std::size_t count) {
  constexpr std::array<std::uint8_t, 4> kOpcodes = {kEmptyTuple, kTuple1, kTuple2, kTuple3};
  op(static_cast<char>(kOpcodes[count]));
}

std::uint32_t Writer::memoize() {
  const std::uint32_t memo = memo_count_++;
  if (protocol_ >= kFirstProtocolWithShortText) {
    op(static_cast<char>(kMemoize));
  } else if (memo <= kShortMax) {
    put_opcode(out_, kBinPut, static_cast<std::uint8_t>(memo));
  } else {
    put_opcode(out_, kLongBinPut, memo);
  }
  return memo;
}

void Writer::reference(std::uint32_t memo) {
  if (memo <= kShortMax) {
    put_opcode(out_, kBinGet, static_cast<std::uint8_t>(memo));
  } else {
    put_opcode(out_, kLongBinGet, memo);
  }
}

}  // namespace cairn::pickle
