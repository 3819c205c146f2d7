// Sha256: SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), for the signatures of requests.
//
// Plain C++ without the instructions of the processor for SHA: made for texts of some KiB, not for payloads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

using Sha256Digest = std::array<std::uint8_t, 32>;

class Sha256 {
 public:
  void add(std::string_view text);
  // The digest of all added texts. The object is then used no more.
  Sha256Digest finish();

 private:
  void add_block();

  static constexpr std::size_t kBlockBytes = 64;
  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, kBlockBytes> block_{};
  std::size_t block_used_ = 0;  // bytes
  std::uint64_t added_ = 0;     // bytes
};

Sha256Digest sha256(std::string_view text);
Sha256Digest hmac_sha256(std::string_view key, std::string_view text);
inline Sha256Digest hmac_sha256(const Sha256Digest& key, std::string_view text) {
  return hmac_sha256(std::string_view(reinterpret_cast<const char*>(key.data()), key.size()), text);
}

// 64 lower-case digits.
std::string hex_text(const Sha256Digest& digest);

}  // namespace cairn
