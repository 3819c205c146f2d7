#include "format/pickle/stencil.h"

#include <cstring>

namespace cairn::pickle {
namespace {

// Bytes of an opcode that a stencil keeps as fixed bytes; 0 for an opcode that becomes a hole or ends the stencil.
std::size_t fixed_bytes(std::uint8_t opcode) {
  switch (opcode) {
    case kBinGet: return 2;
    case kLongBinGet: return 5;
    case kMark:
    case kNone:
    case kReduce:
    case kBuild:
    case kTuple:
    case kSetItem:
    case kSetItems:
    case kEmptyDict:
    case kEmptyTuple:
    case kNewObj:
    case kTuple1:
    case kTuple2:
    case kTuple3:
    case kNewTrue:
    case kNewFalse:
    case kMemoize: return 1;
    default: return 0;
  }
}

}  // namespace

std::optional<Stencil> Stencil::make(const std::byte* begin, const std::byte* end, const std::byte* input_end,
                                     const std::byte* earlier) {
  Stencil stencil;
  const std::byte* at = begin;
  const std::byte* fixed = at;  // the bytes from here to `at` are in no step yet
  const auto add_step = [&](std::size_t length, Hole hole) {
    if (stencil.step_count_ == kStepsMax) return false;
    Step& step = stencil.steps_[stencil.step_count_++];
    std::memcpy(&step.opcodes, fixed, length);
    step.mask = length == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * length)) - 1;
    step.length = static_cast<std::uint8_t>(length);
    step.hole = hole;
    fixed += length;
    return true;
  };
  const auto flush = [&](Hole hole) {
    while (at - fixed > 8) {
      if (!add_step(8, Hole::kNone)) return false;
    }
    return add_step(static_cast<std::size_t>(at - fixed), hole);
  };
  while (at != end) {
    const std::size_t bytes = fixed_bytes(std::to_integer<std::uint8_t>(*at));
    const bool is_same = earlier == nullptr || std::memcmp(at, earlier, bytes) == 0;
    if (bytes != 0 && is_same) {
      at += bytes;
      if (earlier != nullptr) earlier += bytes;
      continue;
    }
    const Hole hole = bytes == 0 ? Hole::kValue : Hole::kReference;
    if (stencil.filling_count_ == kFillingsMax || !flush(hole)) return std::nullopt;
    // The scan has checked that operands lie inside the input. A wide load may still reach beyond the input.
    const auto take_one = [&](const std::byte*& place) {
      if (input_end - place < kReach) return false;
      return hole == Hole::kReference ? take_reference(place).has_value() : take(place, input_end, nullptr);
    };
    if (!take_one(at) || (earlier != nullptr && !take_one(earlier))) return std::nullopt;
    ++stencil.filling_count_;
    fixed = at;
  }
  if (!flush(Hole::kNone)) return std::nullopt;
  return stencil;
}

}  // namespace cairn::pickle
