#include "format/pickle/opcode_scan.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "core/little_endian.h"
#include "format/pickle/opcode.h"
#include "format/pickle/stencil.h"

namespace cairn::pickle {
namespace {

// The operand of an opcode.
enum class Operand : std::uint8_t {
  kUnknown,
  kNothing,
  kByte,
  kFourBytes,
  kEightBytes,
  kCounted1,
  kCounted4,
  kCounted8,
  kOneLine,
  kTwoLines
};

constexpr std::array<Operand, 256> make_operands() {
  std::array<Operand, 256> operands{};
  for (const Opcode opcode :
       {kMark,    kPop,      kPopMark,  kDup,      kNone,      kBinPersId, kReduce,      kAppend,
        kBuild,   kAppends,  kSetItem,  kTuple,    kSetItems,  kEmptyDict, kEmptyList,   kNewObj,
        kNewTrue, kNewFalse, kEmptySet, kAddItems, kFrozenSet, kNewObjEx,  kStackGlobal, kMemoize}) {
    operands[opcode] = Operand::kNothing;
  }
  for (const Opcode opcode : {kProto, kBinPut}) operands[opcode] = Operand::kByte;
  operands[kLongBinPut] = Operand::kFourBytes;
  for (const Opcode opcode : {kBinFloat, kFrame}) operands[opcode] = Operand::kEightBytes;
  for (const Opcode opcode : {kShortBinBytes, kLong1, kShortBinString}) operands[opcode] = Operand::kCounted1;
  for (const Opcode opcode : {kBinUnicode, kBinBytes, kLong4, kBinString}) operands[opcode] = Operand::kCounted4;
  for (const Opcode opcode : {kBinUnicode8, kBinBytes8, kByteArray8}) operands[opcode] = Operand::kCounted8;
  for (const Opcode opcode : {kInt, kLong}) operands[opcode] = Operand::kOneLine;
  operands[kGlobal] = Operand::kTwoLines;
  return operands;
}
constexpr std::array<Operand, 256> kOperands = make_operands();

// The position of a scan. Small enough for registers: no code takes the cursor's address.
struct Cursor {
  const std::byte* at;
  const std::byte* end;

  std::size_t left() const { return static_cast<std::size_t>(end - at); }

  [[gnu::always_inline]] bool skip(std::size_t bytes) {
    if (left() < bytes) return false;
    at += bytes;
    return true;
  }

  // Skips a length of type T and `length` bytes.
  template <typename T>
  [[gnu::always_inline]] bool skip_counted() {
    if (left() < sizeof(T)) return false;
    const std::uint64_t length = load_little_endian<T>(at);
    at += sizeof(T);
    return length <= left() && skip(static_cast<std::size_t>(length));
  }

  [[gnu::always_inline]] bool skip_idiom(const Idiom& memoized, const Idiom& bare) {
    if (left() < sizeof(std::uint64_t)) return false;
    if (memoized.is_at(at)) return skip(memoized.length);
    return bare.is_at(at) && skip(bare.length);
  }

  [[gnu::always_inline]] bool skip_line() {
    const void* newline = std::memchr(at, '\n', left());
    if (newline == nullptr) return false;
    at = static_cast<const std::byte*>(newline) + 1;
    return true;
  }

  [[gnu::always_inline]] bool skip_operand(Operand operand) {
    switch (operand) {
      case Operand::kByte: return skip(1);
      case Operand::kFourBytes: return skip(4);
      case Operand::kEightBytes: return skip(8);
      case Operand::kCounted1: return skip_counted<std::uint8_t>();
      case Operand::kCounted4: return skip_counted<std::uint32_t>();
      case Operand::kCounted8: return skip_counted<std::uint64_t>();
      case Operand::kOneLine: return skip_line();
      case Operand::kTwoLines: return skip_line() && skip_line();
      case Operand::kUnknown: return false;
      case Operand::kNothing: return true;
    }
    return false;
  }
};

// Skips objects whose opcodes equal a recent object's opcodes except for the holes.
class ObjectStencils {
 public:
  // Calls `use` for each memo entry read by a reference in a hole. References outside holes equal the earlier object's
  // references, whose entries are already marked as used.
  template <typename Use>
  [[gnu::always_inline]] bool skip_object(Cursor& cursor, Use use) {
    const auto skip = [use, end = cursor.end](const std::byte*& at, Hole hole) {
      if (hole == Hole::kValue) return Stencil::take(at, end, nullptr);
      const std::optional<std::size_t> memo = Stencil::take_reference(at);
      return memo && use(*memo);
    };
    return stencils_.find([&](const auto& entry) { return entry.stencil.match(cursor.at, cursor.end, skip); }) !=
           nullptr;
  }
  void object_begins(const std::byte* at) { begin_ = at; }
  [[gnu::always_inline]] void object_ends(const Cursor& cursor) {
    if (begin_ != nullptr) learn(cursor);
  }

 private:
  struct Nothing {};
  [[gnu::noinline]] void learn(Cursor cursor) {
    stencils_.learn(
        begin_, cursor.at, cursor.end, [](Nothing) { return true; },
        [](const Stencil&) { return std::optional(Nothing()); });
    begin_ = nullptr;
  }
  StencilSet<Nothing> stencils_;
  const std::byte* begin_ = nullptr;
};

bool is_unknown_protocol(const std::byte* opcode_at, const Cursor& behind) {
  return std::to_integer<std::uint8_t>(*opcode_at) == kProto && behind.left() > 0 &&
         std::to_integer<int>(*behind.at) > kProtocolMax;
}

Error refusal(std::span<const std::byte> input, const std::byte* opcode_at) {
  const auto offset = static_cast<std::uint64_t>(opcode_at - input.data());
  const auto opcode = std::to_integer<unsigned>(*opcode_at);
  constexpr std::string_view kDigits = "0123456789abcdef";
  const std::string text = {'0', 'x', kDigits[opcode >> 4], kDigits[opcode & 15]};
  if (opcode == kProto) {
    return Error(ErrorCode::kUnsupported, "pickle: unknown protocol").offset(offset).expected("2 to 5");
  }
  // INST, OBJ, PERSID, EXT*, NEXT_BUFFER, READONLY_BUFFER, and the text opcodes of protocol 0 alone.
  constexpr std::string_view kKnownToPython = "ioPFSVdglp\x82\x83\x84\x97\x98";
  if (kKnownToPython.find(static_cast<char>(opcode)) != std::string_view::npos) {
    return Error(ErrorCode::kUnsupported, "pickle: opcode not allowed in plain data").offset(offset).actual(text);
  }
  return Error(ErrorCode::kCorrupt, "not a pickle: unknown opcode").offset(offset).actual(text);
}

}  // namespace

Result<OpcodeScan> OpcodeScan::make(std::span<const std::byte> input) {
  OpcodeScan scan;
  CAIRN_TRY(scan.run(input));
  return scan;
}

[[gnu::always_inline]] inline bool OpcodeScan::use(std::size_t memo, std::size_t input_bytes) {
  if (memo >= input_bytes) return false;  // more entries than bytes that could make entries
  std::uint64_t& word = used_[memo / 64];
  const std::uint64_t bit = std::uint64_t{1} << (memo % 64);
  if ((word & bit) == 0) {
    word |= bit;
    memo_count_ = std::max(memo_count_, memo + 1);
  }
  return true;
}

// Opcodes that are frequent in metadata have their own case: a predicted branch costs less than a table look-up.
Result<void> OpcodeScan::run(std::span<const std::byte> input) {
  used_ = ZeroedArray<std::uint64_t>(input.size() / 64 + 2);
  Cursor cursor{input.data(), input.data() + input.size()};
  ObjectStencils stencils;
  bool inside = true;
  const std::byte* opcode_at = cursor.at;
  while (inside && cursor.at != cursor.end) {
    opcode_at = cursor.at++;
    const auto opcode = std::to_integer<std::uint8_t>(*opcode_at);
    switch (opcode) {
      case kMark:
      case kMemoize:
      case kSetItems: break;
      case kBuild: stencils.object_ends(cursor); break;
      case kTuple1:
      case kTuple2:
      case kTuple3: cursor.skip_idiom(kIntoCall, kIntoCallBare); break;
      case kEmptyTuple:
        if (stencils.skip_object(cursor, [&](std::size_t memo) { return use(memo, input.size()); })) break;
        if (cursor.skip_idiom(kIntoInstance, kIntoInstanceBare)) stencils.object_begins(opcode_at + 1);
        break;
      case kBinGet: inside = cursor.skip(1) && use(std::to_integer<std::size_t>(opcode_at[1]), input.size()); break;
      case kLongBinGet:
        inside = cursor.skip(4) && use(load_little_endian<std::uint32_t>(opcode_at + 1), input.size());
        break;
      case kBinInt1: inside = cursor.skip(1); break;
      case kBinInt2: inside = cursor.skip(2); break;
      case kBinInt: inside = cursor.skip(4); break;
      case kShortBinUnicode: inside = cursor.skip_counted<std::uint8_t>(); break;
      case kStop: bytes_consumed_ = static_cast<std::size_t>(cursor.at - input.data()); return {};
      default:
        if (kOperands[opcode] == Operand::kUnknown || is_unknown_protocol(opcode_at, cursor)) {
          return refusal(input, opcode_at);
        }
        inside = cursor.skip_operand(kOperands[opcode]);
        break;
    }
  }
  const auto offset = static_cast<std::uint64_t>(opcode_at - input.data());
  if (inside) return Error(ErrorCode::kCorrupt, "pickle: no STOP at the end").offset(input.size());
  return Error(ErrorCode::kCorrupt, "pickle: length or memo index beyond the end").offset(offset);
}

}  // namespace cairn::pickle
