// Stencil: the opcodes of an object that was read before, with holes at the places where objects of its kind differ. A
// following object of the kind is recognised by a comparison with the stencil. A hole is a small number, a short text,
// or a reference to the memo that differed between two objects.
//
// Pure. Only for speed: an object that matches no stencil is read opcode by opcode.
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

// The content of a hole.
struct Filling {
  bool is_text = false;
  std::int64_t number = 0;
  std::string_view text;
};

enum class Hole : std::uint8_t { kNone, kValue, kReference };

class Stencil {
 public:
  static constexpr std::size_t kFillingsMax = 24;

  // Makes a stencil of the whole opcodes from `begin` to `end`, in an input that ends at `input_end`. `earlier`, if not
  // null, is an earlier object with an equal stencil except for references to the memo: the differing references become
  // holes. Nullopt if the two objects differ in more than references, if there are too many opcodes, or if an opcode
  // cannot be in a stencil.
  static std::optional<Stencil> make(const std::byte* begin, const std::byte* end, const std::byte* input_end,
                                     const std::byte* earlier);

  // Whether the opcodes at `at` equal the stencil except for the holes. If true, moves `at` behind the opcodes. At each
  // hole, `fill` gets a reference to the place, moves the place behind the hole's content, and may refuse by returning
  // false.
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

  // Skips a reference and returns the number of its memo entry. At least five bytes can be read at `at`.
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

  // Skips a number or text and stores the content in `filling`, if `filling` is not null. At least ten bytes can be
  // read at `at`.
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
  // Up to eight fixed bytes, then perhaps a hole.
  struct Step {
    std::uint64_t opcodes = 0;
    std::uint64_t mask = 0;
    std::uint8_t length = 0;
    Hole hole = Hole::kNone;
  };
  static constexpr std::size_t kStepsMax = 32;
  // The eight bytes of a step, then opcode, length and eight bytes of a number.
  static constexpr std::ptrdiff_t kReach = 8 + 2 + 8;

  std::array<Step, kStepsMax> steps_;
  std::size_t step_count_ = 0;
  std::size_t filling_count_ = 0;
};

// The most recent stencils, each with a note of the stencil's owner.
template <typename Note>
class StencilSet {
 public:
  struct Entry {
    Stencil stencil;
    Note note;
    const std::byte* begin = nullptr;  // of the object from which the stencil was made
  };
  // An entry for which `fits` returns true, or null. Kinds of objects alternate: the first entry tried is the entry
  // that last followed the previous match.
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

  // Makes a stencil for the object from `begin` to `end`. If the object differs only in references from the object of
  // an entry whose note satisfies `is_alike`, makes one stencil for both objects and replaces the entry. `accept` gets
  // the stencil and returns the note to store with the stencil, or nullopt to drop the stencil.
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
  std::array<std::size_t, kEntriesMax> followers_{};  // by entry: the entry that followed it last
  std::size_t count_ = 0;
  std::size_t next_ = 0;
  std::size_t last_ = 0;
};

}  // namespace cairn::pickle
