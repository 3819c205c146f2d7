// SeededHash: a hash of text for tables whose keys come from files.
//
// Every process draws its own seed. An attacker therefore can't choose keys with equal hashes, which would make each
// look-up walk through all keys. Pure except for the seed; safe from any thread. Hashes must not leave the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cairn {

struct SeededHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept;
  std::size_t operator()(std::uint64_t number) const noexcept;
};

}  // namespace cairn
