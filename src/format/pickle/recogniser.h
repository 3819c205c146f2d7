// Recogniser: folds objects that are written like one that was folded before, without a graph.
//
// One thread at a time; borrows all that it is given.
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
  // Without a folder it knows nothing.
  Recogniser(const Graph& graph, const OpcodeScan& scan, const ZeroedArray<Node>& memo, Folder* folder)
      : graph_(graph), scan_(scan), memo_(memo), folder_(folder) {}

  // An object is begun: its place in the arena and in the input, and how much was memoised before it.
  void begin(std::size_t place, const std::byte* at, std::size_t memoized) {
    place_ = place;
    begin_ = at;
    memoized_before_ = memoized;
  }
  // The object at `place` has been folded; its opcodes end at `end`. Learns it if it is the one that was begun last.
  void end(std::size_t place, const std::byte* end, std::size_t memoized, Node callable, std::uint64_t folded) {
    if (place == place_) learn(end, memoized - memoized_before_, callable, folded);
    place_ = 0;
  }

  struct Found {
    std::uint64_t folded;
    std::size_t memoized;  // entries of the memo that the object takes
  };
  // The object of `callable` that begins at `at`, if it is like a known one and nothing refers to its parts. Then moves
  // `at` behind it.
  [[gnu::always_inline]] std::optional<Found> find(const std::byte*& at, Node callable, std::size_t memoized) {
    std::optional<std::uint64_t> folded;
    const std::byte* place = at;
    const auto* found = stencils_.find([&](const auto& entry) {
      if (!(entry.note.callable == callable) || !fill(entry.stencil, place)) return false;
      if (!scan_.is_any_used(memoized, entry.note.memoized)) {
        folded = folder_->fold_like(entry.note.folded, fillings(entry.stencil));
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
    constexpr std::size_t kMemoizedMax = 64;  // that the scan can be asked about
    if (memoized > kMemoizedMax) return;
    const auto is_alike = [&](const Earlier& earlier) {
      return earlier.callable == callable && earlier.memoized == memoized;
    };
    const auto accept = [&](const Stencil& stencil) {
      const std::byte* at = begin_;
      const bool is_told = fill(stencil, at) && folder_->is_told_by(folded, fillings(stencil));
      return is_told ? std::optional(Earlier{callable, folded, memoized}) : std::nullopt;
    };
    stencils_.learn(begin_, end, input_end(), is_alike, accept);
  }

  [[gnu::always_inline]] bool fill(const Stencil& stencil, const std::byte*& at) {
    Filling* next = fillings_.data();
    return stencil.match(at, input_end(), [this, &next](const std::byte*& place, Hole hole) {
      if (hole == Hole::kValue) return Stencil::take(place, input_end(), next++);
      const std::optional<std::size_t> memo = Stencil::take_reference(place);
      if (!memo) return false;
      const std::optional<std::string_view> text = graph_.text_if(memo_[*memo]);  // the scan has seen that it exists
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
  Folder* folder_;
  std::size_t place_ = 0;  // 0: no object is begun
  const std::byte* begin_ = nullptr;
  std::size_t memoized_before_ = 0;
  StencilSet<Earlier> stencils_;
  std::array<Filling, Stencil::kFillingsMax> fillings_;
};

}  // namespace cairn::pickle
