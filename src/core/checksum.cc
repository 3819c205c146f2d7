#include "core/checksum.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <string_view>

#include "core/stream_copy.h"

namespace cairn {
namespace {

// Polynomials over GF(2) modulo the zip polynomial, bit-reflected: bit 31 is the coefficient of x^0.
constexpr std::uint32_t kPolynomial = 0xEDB88320u;
constexpr std::uint32_t kOne = 0x80000000u;

constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

// x^(8 * 2^i) for each i: multiplying by x^(8 * 2^i) shifts a CRC over 2^i bytes.
constexpr std::array<std::uint32_t, 64> kShiftByPowers = [] {
  std::array<std::uint32_t, 64> powers{};
  powers[0] = kOne >> 8;
  for (std::size_t i = 1; i < powers.size(); ++i) powers[i] = multiply(powers[i - 1], powers[i - 1]);
  return powers;
}();

constexpr std::uint32_t shift_operator(std::uint64_t length) {
  std::uint32_t result = kOne;
  for (std::size_t i = 0; length != 0; ++i, length >>= 1) {
    if ((length & 1) != 0) result = multiply(result, kShiftByPowers[i]);
  }
  return result;
}

constexpr std::uint32_t kShiftByBlock = shift_operator(kChecksumBlockBytes);

// Small enough for a piece to stay in the first-level cache between its CRC and its copy.
constexpr std::size_t kCopyPieceBytes = 4 * 1024;

}  // namespace

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t seed) {
  if (bytes.empty()) return seed;
  return crc32_gzip_refl(seed, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

std::uint32_t copy_with_crc32(std::span<std::byte> target, std::span<const std::byte> source, std::uint32_t seed) {
  assert(target.size() == source.size());
  for (std::size_t done = 0; done < source.size(); done += kCopyPieceBytes) {
    const std::size_t piece = std::min(kCopyPieceBytes, source.size() - done);
    seed = crc32(source.subspan(done, piece), seed);
    stream_piece(target.subspan(done, piece), source.subspan(done, piece));
  }
  finish_streaming();
  return seed;
}

std::uint32_t combine_crc32(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t length_b) {
  return multiply(shift_operator(length_b), crc_a) ^ crc_b;
}

std::string crc_text(std::uint32_t crc) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "crc ";
  for (int shift = 28; shift >= 0; shift -= 4) text += kDigits[(crc >> shift) & 0xF];
  return text;
}

std::uint32_t combine_blocks(std::span<const std::uint32_t> block_crcs, std::uint64_t payload_bytes) {
  assert(block_crcs.size() == checksum_block_count(payload_bytes));
  if (block_crcs.empty()) return 0;
  std::uint32_t crc = block_crcs[0];
  for (std::size_t i = 1; i + 1 < block_crcs.size(); ++i) crc = multiply(kShiftByBlock, crc) ^ block_crcs[i];
  if (block_crcs.size() > 1) {
    const std::uint64_t last_bytes = payload_bytes - (block_crcs.size() - 1) * kChecksumBlockBytes;
    crc = combine_crc32(crc, block_crcs.back(), last_bytes);
  }
  return crc;
}

}  // namespace cairn
