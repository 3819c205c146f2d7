#include "core/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace cairn {
namespace {

constexpr std::array<std::uint32_t, 64> kRoundConstants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t load_big_endian(const std::uint8_t* from) {
  return std::uint32_t{from[0]} << 24 | std::uint32_t{from[1]} << 16 | std::uint32_t{from[2]} << 8 | from[3];
}

}  // namespace

void Sha256::add(std::string_view text) {
  added_ += text.size();
  while (!text.empty()) {
    const std::size_t part = std::min(text.size(), kBlockBytes - block_used_);
    std::memcpy(block_.data() + block_used_, text.data(), part);
    block_used_ += part;
    text.remove_prefix(part);
    if (block_used_ == kBlockBytes) add_block();
  }
}

void Sha256::add_block() {
  std::array<std::uint32_t, 64> words;
  for (std::size_t i = 0; i < 16; ++i) words[i] = load_big_endian(block_.data() + 4 * i);
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = words[i - 15];
    const std::uint32_t b = words[i - 2];
    const std::uint32_t small0 = std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3);
    const std::uint32_t small1 = std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10);
    words[i] = words[i - 16] + small0 + words[i - 7] + small1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t large1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t one = h + large1 + ((e & f) ^ (~e & g)) + kRoundConstants[i] + words[i];
    const std::uint32_t large0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t two = large0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + one;
    d = c;
    c = b;
    b = a;
    a = one + two;
  }
  const std::array<std::uint32_t, 8> mixed{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state_[i] += mixed[i];
  block_used_ = 0;
}

Sha256Digest Sha256::finish() {
  const std::uint64_t bits = added_ * 8;
  add(std::string_view("\x80", 1));
  while (block_used_ != kBlockBytes - 8) add(std::string_view("\0", 1));
  std::array<char, 8> length;
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(bits >> (56 - 8 * i));
  add(std::string_view(length.data(), length.size()));
  Sha256Digest digest;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

Sha256Digest sha256(std::string_view text) {
  Sha256 hash;
  hash.add(text);
  return hash.finish();
}

Sha256Digest hmac_sha256(std::string_view key, std::string_view text) {
  std::array<char, 64> inner{};
  if (key.size() > inner.size()) {
    const Sha256Digest digest = sha256(key);
    std::memcpy(inner.data(), digest.data(), digest.size());
  } else {
    std::copy(key.begin(), key.end(), inner.begin());
  }
  std::array<char, 64> outer = inner;
  for (char& c : inner) c = static_cast<char>(c ^ 0x36);
  for (char& c : outer) c = static_cast<char>(c ^ 0x5c);
  Sha256 first;
  first.add(std::string_view(inner.data(), inner.size()));
  first.add(text);
  const Sha256Digest inside = first.finish();
  Sha256 second;
  second.add(std::string_view(outer.data(), outer.size()));
  second.add(std::string_view(reinterpret_cast<const char*>(inside.data()), inside.size()));
  return second.finish();
}

std::string hex_text(const Sha256Digest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace cairn
