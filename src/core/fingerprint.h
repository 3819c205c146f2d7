// Fingerprint: 128 bits that stand for a text. Equal texts have equal fingerprints in every process and on every
// machine; two texts that differ by chance have different fingerprints. Not for texts of an attacker: everyone knows
// the keys of the hashes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "core/sip_hash.h"

namespace cairn {

struct Fingerprint {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

// The fingerprint of the texts, in their order. The lengths count too: moving a byte from a text to the next text
// changes the fingerprint.
inline Fingerprint fingerprint_of(std::initializer_list<std::string_view> texts) {
  const auto hash_of = [&](SipKey key) {
    SipHash hash(key);
    for (const std::string_view text : texts) hash.add(text);
    return hash.finish();
  };
  return {hash_of({0x636169726e2d706c, 0x616e2d68616c6631}), hash_of({0x616e2d68616c6632, 0x636169726e2d706c})};
}

}  // namespace cairn
