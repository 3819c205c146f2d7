// Stencil: the opcodes of an object that was read, with holes where objects of its kind differ: the next one is
// recognised by it at once. Holes are small numbers, short texts, and those references to the memo that were seen to
// differ.
//
// Pure. For speed only: whatever does not fit a stencil is read opcode by opcode.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "core/little_endian.h"
#include "format/pickle/opcode.h"

namespace cairn::pickle {

// What filled a hole.
struct Filling {
  bool is_text = false;
  std::int64_t number = 0;
  std::string_view text;
};

enum class Hole : std::uint8_t { kNone, kValue, kReference };

class Stencil {
 public:
  static constexpr std::size_t kFillingsMax = 24;

  // Of the whole opcodes from `begin` to `end`, in an input that reaches to `input_end`. If there is an `earlier`
  // object, of which the same is known, its references may differ. Nullopt if it differs in more, or if there are too
  // many opcodes, or one that a stencil cannot have.
  static std::optional<Stencil> make(const std::byte* begin, const std::byte* end, const std::byte* input_end,
                                     const std::byte* earlier);

  // Whether the opcodes at `at` are the same but for what fills the holes; then `at` is moved behind them. At each
  // hole, `fill` is given its place to move it on, and may refuse.
  template <typename Fill>
  [[gnu::always_inline]] bool match(const std::byte*& at, const std::byte* end, Fill fill) const {
    const std::byte* place = at;
    for (std::size_t i = 0; i < step_count_; ++i) {
      const Step& step = steps_[i];
      if (end - place < kReach) return false;
      if (((load_little_endian<std::uint64_t>(place) ^ step.opcodes) & step.mask) != 0) return false;
      place += step.length;
      if (step.hole != Hole::kNone && !fill(place, step.hole)) return false;
    }
    at = place;
    return true;
  }
  std::size_t filling_count() const noexcept { return filling_count_; }

  // Skips a reference, of which five bytes are there; gives the entry of the memo.
  [[gnu::always_inline]] static std::optional<std::size_t> take_reference(const std::byte*& at) {
    const std::byte* operand = at + 1;
    if (*at == std::byte{kBinGet}) {
      at += 2;
      return load_little_endian<std::uint8_t>(operand);
    }
    if (*at != std::byte{kLongBinGet}) return std::nullopt;
    at += 5;
    return load_little_endian<std::uint32_t>(operand);
  }

  // Skips a number or text, of which ten bytes are there; gives it in `filling`, if that is not null.
  [[gnu::always_inline]] static bool take(const std::byte*& at, const std::byte* end, Filling* filling) {
    const std::byte* operand = at + 1;
    std::int64_t number = 0;
    switch (std::to_integer<std::uint8_t>(*at)) {
      case kBinInt1:
        number = load_little_endian<std::uint8_t>(operand);
        at += 2;
        break;
      case kBinInt2:
        number = load_little_endian<std::uint16_t>(operand);
        at += 3;
        break;
      case kBinInt:
        number = static_cast<std::int32_t>(load_little_endian<std::uint32_t>(operand));
        at += 5;
        break;
      case kLong1: {
        const auto bytes = load_little_endian<std::uint8_t>(operand);
        if (bytes == 0 || bytes > 8) return false;
        const unsigned unused_bits = 64 - 8u * bytes;
        number =
            static_cast<std::int64_t>(load_little_endian<std::uint64_t>(operand + 1) << unused_bits) >> unused_bits;
        at += 2 + bytes;
        break;
      }
      case kShortBinUnicode: {
        const auto bytes = load_little_endian<std::uint8_t>(operand);
        if (end - operand <= bytes) return false;
        if (filling != nullptr) *filling = {true, 0, {reinterpret_cast<const char*>(operand + 1), bytes}};
        at += 2 + bytes;
        return true;
      }
      default: return false;
    }
    if (filling != nullptr) *filling = {false, number, {}};
    return true;
  }

 private:
  // Up to eight bytes that stay, then perhaps a hole.
  struct Step {
    std::uint64_t opcodes = 0;
    std::uint64_t mask = 0;
    std::uint8_t length = 0;
    Hole hole = Hole::kNone;
  };
  static constexpr std::size_t kStepsMax = 32;
  static constexpr std::ptrdiff_t kReach = 8 + 2 + 8;  // a step's bytes, and a number of eight bytes

  std::array<Step, kStepsMax> steps_;
  std::size_t step_count_ = 0;
  std::size_t filling_count_ = 0;
};

// The stencils that were made last, each with what its maker wants to know of it.
template <typename Note>
class StencilSet {
 public:
  struct Entry {
    Stencil stencil;
    Note note;
    const std::byte* begin = nullptr;  // of the object that it was made from
  };
  // An entry of which `fits` is true, or null. Objects come in turns: it tries first what came after the last one
  // before.
  template <typename Fits>
  [[gnu::always_inline]] const Entry* find(Fits fits) {
    if (count_ == 0) return nullptr;
    const std::size_t guess = followers_[last_];
    if (fits(entries_[guess])) {
      last_ = guess;
      return &entries_[guess];
    }
    for (std::size_t i = 0; i < count_; ++i) {
      if (i == guess || !fits(entries_[i])) continue;
      followers_[last_] = i;
      last_ = i;
      return &entries_[i];
    }
    return nullptr;
  }

  // A stencil for the object from `begin` to `end` and, if it differs only in references from one whose note is
  // `is_alike`, for that one, too. Gives it to `accept` and keeps it, with the note that it gets from there, if any.
  template <typename IsAlike, typename Accept>
  void learn(const std::byte* begin, const std::byte* end, const std::byte* input_end, IsAlike is_alike,
             Accept accept) {
    for (std::size_t i = 0; i < count_; ++i) {
      if (!is_alike(entries_[i].note)) continue;
      const std::optional<Stencil> both = Stencil::make(begin, end, input_end, entries_[i].begin);
      if (!both) continue;
      if (std::optional<Note> note = accept(*both)) entries_[i] = {*both, *note, begin};
      return;
    }
    const std::optional<Stencil> stencil = Stencil::make(begin, end, input_end, nullptr);
    if (!stencil) return;
    std::optional<Note> note = accept(*stencil);
    if (!note) return;
    entries_[next_] = {*stencil, *note, begin};
    next_ = (next_ + 1) % entries_.size();
    count_ = count_ < entries_.size() ? count_ + 1 : count_;
  }

 private:
  static constexpr std::size_t kEntriesMax = 8;
  std::array<Entry, kEntriesMax> entries_;
  std::array<std::size_t, kEntriesMax> followers_{};  // by entry: which one came after it
  std::size_t count_ = 0;
  std::size_t next_ = 0;
  std::size_t last_ = 0;
};

}  // namespace cairn::pickle
