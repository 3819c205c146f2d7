#include "format/pickle/opcode_scan.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/little_endian.h"
#include "format/pickle/opcode.h"

namespace cairn::pickle {
namespace {

// Where a scan stands. Small enough to live in registers: nothing keeps its address.
struct Cursor {
  const std::byte* at;
  const std::byte* end;

  std::size_t left() const { return static_cast<std::size_t>(end - at); }

  [[gnu::always_inline]] bool skip(std::size_t bytes) {
    if (left() < bytes) return false;
    at += bytes;
    return true;
  }

  // Skips a length of type T and as many bytes as it says.
  template <typename T>
  [[gnu::always_inline]] bool skip_counted() {
    if (left() < sizeof(T)) return false;
    const std::uint64_t length = load_little_endian<T>(at);
    at += sizeof(T);
    return length <= left() && skip(static_cast<std::size_t>(length));
  }

  [[gnu::always_inline]] void skip_idiom(const Idiom& memoized, const Idiom& bare) {
    if (left() < sizeof(std::uint64_t)) return;
    if (memoized.is_at(at)) {
      at += memoized.length;
    } else if (bare.is_at(at)) {
      at += bare.length;
    }
  }

  bool skip_line() {
    const void* newline = std::memchr(at, '\n', left());
    if (newline == nullptr) return false;
    at = static_cast<const std::byte*>(newline) + 1;
    return true;
  }
};

Error refusal(std::span<const std::byte> input, const std::byte* opcode_at) {
  const auto offset = static_cast<std::uint64_t>(opcode_at - input.data());
  const auto opcode = std::to_integer<unsigned>(*opcode_at);
  constexpr std::string_view kDigits = "0123456789abcdef";
  const std::string text = {'0', 'x', kDigits[opcode >> 4], kDigits[opcode & 15]};
  if (opcode == kProto) {
    return Error(ErrorCode::kUnsupported, "a pickle of an unknown protocol").offset(offset).expected("2 to 5");
  }
  // INST, OBJ, PERSID, EXT*, NEXT_BUFFER, READONLY_BUFFER, and the text opcodes of protocol 0.
  constexpr std::string_view kKnownToPython = "ioP\x82\x83\x84\x97\x98IFLSTUVdglp";
  if (kKnownToPython.find(static_cast<char>(opcode)) != std::string_view::npos) {
    return Error(ErrorCode::kUnsupported, "a pickle with an opcode that is not for data").offset(offset).actual(text);
  }
  return Error(ErrorCode::kCorrupt, "not a pickle: no such opcode").offset(offset).actual(text);
}

}  // namespace

Result<OpcodeScan> OpcodeScan::make(std::span<const std::byte> input) {
  OpcodeScan scan;
  CAIRN_TRY(scan.run(input));
  return scan;
}

bool OpcodeScan::use(std::size_t memo, std::size_t input_bytes) {
  if (memo >= input_bytes) return false;  // more entries than bytes to make them
  std::uint64_t& word = used_[memo / 64];
  const std::uint64_t bit = std::uint64_t{1} << (memo % 64);
  if ((word & bit) == 0) word |= bit;
  memo_count_ = std::max(memo_count_, memo + 1);
  return true;
}

Result<void> OpcodeScan::run(std::span<const std::byte> input) {
  used_ = ZeroedArray<std::uint64_t>(input.size() / 64 + 1);
  Cursor cursor{input.data(), input.data() + input.size()};
  bool inside = true;
  const std::byte* opcode_at = cursor.at;
  while (inside && cursor.at != cursor.end) {
    opcode_at = cursor.at++;
    switch (std::to_integer<std::uint8_t>(*opcode_at)) {
      case kMark: case kPop: case kPopMark: case kDup: case kNone: case kBinPersId: case kReduce: case kAppend: case kBuild:
      case kAppends: case kSetItem: case kTuple: case kSetItems: case kEmptyDict: case kEmptyList:
      case kNewObj: case kNewTrue: case kNewFalse: case kEmptySet: case kAddItems:
      case kFrozenSet: case kNewObjEx: case kStackGlobal: case kMemoize:
        break;
      case kTuple1: case kTuple2: case kTuple3:
        cursor.skip_idiom(kIntoCall, kIntoCallBare);
        break;
      case kEmptyTuple:
        cursor.skip_idiom(kIntoInstance, kIntoInstanceBare);
        break;
      case kBinGet:
        inside = cursor.skip(1) && use(std::to_integer<std::size_t>(opcode_at[1]), input.size());
        break;
      case kLongBinGet:
        inside = cursor.skip(4) && use(load_little_endian<std::uint32_t>(opcode_at + 1), input.size());
        break;
      case kProto:
        inside = cursor.skip(1);
        if (inside && std::to_integer<int>(opcode_at[1]) > kProtocolMax) return refusal(input, opcode_at);
        break;
      case kBinInt1: case kBinPut: inside = cursor.skip(1); break;
      case kBinInt2: inside = cursor.skip(2); break;
      case kBinInt: case kLongBinPut: inside = cursor.skip(4); break;
      case kBinFloat: case kFrame: inside = cursor.skip(8); break;
      case kShortBinUnicode: case kShortBinBytes: case kLong1: inside = cursor.skip_counted<std::uint8_t>(); break;
      case kBinUnicode: case kBinBytes: case kLong4: inside = cursor.skip_counted<std::uint32_t>(); break;
      case kBinUnicode8: case kBinBytes8: case kByteArray8: inside = cursor.skip_counted<std::uint64_t>(); break;
      case kGlobal: inside = cursor.skip_line() && cursor.skip_line(); break;
      case kStop:
        bytes_consumed_ = static_cast<std::size_t>(cursor.at - input.data());
        return {};
      default: return refusal(input, opcode_at);
    }
  }
  const auto offset = static_cast<std::uint64_t>(opcode_at - input.data());
  if (inside) return Error(ErrorCode::kCorrupt, "a pickle that ends without its STOP").offset(input.size());
  return Error(ErrorCode::kCorrupt, "a pickle with a length or a memo number beyond its end").offset(offset);
}

}  // namespace cairn::pickle
