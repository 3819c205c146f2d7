// SipHash-1-3, after Aumasson and Bernstein, "SipHash: a fast short-input PRF": one round per eight bytes and three at
// the end, as in the hash tables of Rust and Python. Unlike the hashes of most standard libraries, SipHash has no
// inputs that collide under every key.
//
// One thread at a time.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/little_endian.h"

namespace cairn {

struct SipKey {
  std::uint64_t low;
  std::uint64_t high;
};

class SipHash {
 public:
  explicit SipHash(const SipKey& key)
      : v0_(key.low ^ 0x736f6d6570736575),
        v1_(key.high ^ 0x646f72616e646f6d),
        v2_(key.low ^ 0x6c7967656e657261),
        v3_(key.high ^ 0x7465646279746573) {}

  void add(std::uint64_t word) {
    v3_ ^= word;
    round();
    v0_ ^= word;
  }

  // Adds the text, and its length.
  void add(std::string_view text) {
    const auto* at = reinterpret_cast<const std::byte*>(text.data());
    const std::byte* const words_end = at + text.size() / 8 * 8;
    for (; at != words_end; at += 8) add(load_little_endian<std::uint64_t>(at));
    std::uint64_t last = std::uint64_t{text.size()} << 56;
    for (std::size_t i = 0; i < text.size() % 8; ++i) last |= std::to_integer<std::uint64_t>(at[i]) << (8 * i);
    add(last);
  }

  std::uint64_t finish() {
    v2_ ^= 0xff;
    for (int i = 0; i < 3; ++i) round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  void round() {
    v0_ += v1_;
    v2_ += v3_;
    v1_ = std::rotl(v1_, 13) ^ v0_;
    v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ = std::rotl(v0_, 32) + v3_;
    v2_ += v1_;
    v3_ = std::rotl(v3_, 21) ^ v0_;
    v1_ = std::rotl(v1_, 17) ^ v2_;
    v2_ = std::rotl(v2_, 32);
  }

  std::uint64_t v0_;
  std::uint64_t v1_;
  std::uint64_t v2_;
  std::uint64_t v3_;
};

}  // namespace cairn
