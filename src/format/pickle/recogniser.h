// Recogniser: folds objects whose opcodes equal an earlier, folded object's opcodes except for the holes of a stencil;
// needs no graph of the objects.
//
// One thread at a time. Borrows all constructor arguments.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "format/pickle/graph.h"
#include "format/pickle/machine.h"
#include "format/pickle/opcode_scan.h"
#include "format/pickle/stencil.h"

namespace cairn::pickle {

class Recogniser {
 public:
  // Without a fold handler the recogniser learns nothing and finds nothing.
  Recogniser(const Graph& graph, const OpcodeScan& scan, const ZeroedArray<Node>& memo, FoldHandler* fold_handler)
      : graph_(graph), scan_(scan), memo_(memo), fold_handler_(fold_handler) {}

  // The opcodes of an object begin at `at`. `place` is the object's place in the arena, `memoized` the number of memo
  // entries before the object.
  void begin(std::size_t place, const std::byte* at, std::size_t memoized) {
    place_ = place;
    begin_ = at;
    memoized_before_ = memoized;
  }
  // The object at `place` has been folded. Its opcodes end at `end`. Learns the object if begin() was last called for
  // the object.
  void end(std::size_t place, const std::byte* end, std::size_t memoized, Node callable, std::uint64_t folded) {
    if (place == place_) learn(end, memoized - memoized_before_, callable, folded);
    place_ = 0;
  }

  struct Found {
    std::uint64_t folded;
    std::size_t memoized;  // entries of the memo that the object takes
  };
  // Folds the object of `callable` that begins at `at`, if a stencil matches and nothing refers to the object's parts.
  // Then moves `at` behind the object.
  [[gnu::always_inline]] std::optional<Found> find(const std::byte*& at, Node callable, std::size_t memoized) {
    std::optional<std::uint64_t> folded;
    const std::byte* place = at;
    const auto* found = stencils_.find([&](const auto& entry) {
      if (!(entry.note.callable == callable) || !fill(entry.stencil, place)) return false;
      if (!scan_.is_any_used(memoized, entry.note.memoized)) {
        folded = fold_handler_->fold_like(entry.note.folded, fillings(entry.stencil));
      }
      return true;
    });
    if (!folded) return std::nullopt;
    at = place;
    return Found{*folded, found->note.memoized};
  }

 private:
  struct Earlier {
    Node callable;
    std::uint64_t folded = 0;
    std::size_t memoized = 0;
  };

  [[gnu::noinline]] void learn(const std::byte* end, std::size_t memoized, Node callable, std::uint64_t folded) {
    constexpr std::size_t kMemoizedMax = 64;  // the most entries that OpcodeScan::is_any_used() takes
    if (memoized > kMemoizedMax) return;
    const auto is_alike = [&](const Earlier& earlier) {
      return earlier.callable == callable && earlier.memoized == memoized;
    };
    const auto accept = [&](const Stencil& stencil) {
      const std::byte* at = begin_;
      const bool is_determined = fill(stencil, at) && fold_handler_->is_determined_by(folded, fillings(stencil));
      return is_determined ? std::optional(Earlier{callable, folded, memoized}) : std::nullopt;
    };
    stencils_.learn(begin_, end, input_end(), is_alike, accept);
  }

  [[gnu::always_inline]] bool fill(const Stencil& stencil, const std::byte*& at) {
    Filling* next = fillings_.data();
    return stencil.match(at, input_end(), [this, &next](const std::byte*& place, Hole hole) {
      if (hole == Hole::kValue) return Stencil::take(place, input_end(), next++);
      const std::optional<std::size_t> memo = Stencil::take_reference(place);
      if (!memo) return false;
      // The scan has checked that the memo has the entry.
      const std::optional<std::string_view> text = graph_.text_if(memo_[*memo]);
      *next++ = {true, 0, text.value_or("")};
      return text.has_value();
    });
  }

  std::span<const Filling> fillings(const Stencil& stencil) const {
    return std::span(fillings_).first(stencil.filling_count());
  }
  const std::byte* input_end() const { return graph_.input().data() + graph_.input().size(); }

  const Graph& graph_;
  const OpcodeScan& scan_;
  const ZeroedArray<Node>& memo_;
  FoldHandler* fold_handler_;
  std::size_t place_ = 0;  // 0: no object is begun
  const std::byte* begin_ = nullptr;
  std::size_t memoized_before_ = 0;
  StencilSet<Earlier> stencils_;
  std::array<Filling, Stencil::kFillingsMax> fillings_;
};

}  // namespace cairn::pickle
