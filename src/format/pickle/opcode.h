// Opcode: the supported instructions of Python's pickle machine, by Python's names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/little_endian.h"

namespace cairn::pickle {

enum Opcode : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinString = 'T',       // text of Python 2
  kShortBinString = 'U',  // text of Python 2
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kInt = 'I',   // text of protocol 1: False, True, and integers of Python 2
  kLong = 'L',  // text of protocol 1: integers beyond 32 bits
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kEmptyList = ']',
  kEmptyTuple = ')',
  // Protocol 2
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  // Protocol 3
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  // Protocol 4
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kNewObjEx = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  // Protocol 5
  kByteArray8 = 0x96,
};

inline constexpr int kProtocolMax = 5;

// A frequent run of opcodes without operands, as written by Python's pickler (with MEMOIZE) and by Cairn (without). The
// run is recognised by one comparison, for speed only.
struct Idiom {
  std::uint64_t opcodes;                      // the first opcode in the lowest byte
  std::size_t length;                         // at most 7
  bool is_at(const std::byte* place) const {  // requires that eight bytes can be loaded at `place`
    return ((load_little_endian<std::uint64_t>(place) ^ opcodes) << (64 - 8 * length)) == 0;
  }
};
inline constexpr Idiom kIntoCall{0x94'52'94'85'94, 5};      // MEMOIZE TUPLE1 MEMOIZE REDUCE MEMOIZE
inline constexpr Idiom kIntoCallBare{0x52'85, 2};           // TUPLE1 REDUCE
inline constexpr Idiom kIntoInstance{0x28'94'7d'94'81, 5};  // NEWOBJ MEMOIZE EMPTY_DICT MEMOIZE MARK
inline constexpr Idiom kIntoInstanceBare{0x28'7d'81, 3};    // NEWOBJ EMPTY_DICT MARK

// The first place of `input` that is too near to the end for Idiom::is_at().
inline const std::byte* idioms_end(std::span<const std::byte> input) {
  return input.data() + (input.size() < sizeof(std::uint64_t) ? 0 : input.size() - sizeof(std::uint64_t));
}

}  // namespace cairn::pickle
