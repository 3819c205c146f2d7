// Checksum: CRC-32 with the zip polynomial, and the algebra for combining the CRCs of parts. One pass over the bytes
// yields both the block checksums and the zip file's CRC.
//
// Pure functions. A CRC is always the finished value, as returned by zlib's crc32() and stored in zip files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn {

// A payload has one checksum per block of kChecksumBlockBytes; the last block is the rest.
inline constexpr std::uint64_t kChecksumBlockBytes = 64 * 1024;

constexpr std::uint64_t checksum_block_count(std::uint64_t payload_bytes) {
  return payload_bytes / kChecksumBlockBytes + (payload_bytes % kChecksumBlockBytes != 0 ? 1 : 0);
}

// The CRC of `bytes` appended to data with CRC `seed` (0 for no data).
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t seed = 0);

// Copies `source` to `target`, of equal size, and returns crc32(source, seed): one pass through memory.
std::uint32_t copy_with_crc32(std::span<std::byte> target, std::span<const std::byte> source, std::uint32_t seed = 0);

// The CRC of A followed by B, from the CRCs of A and B.
std::uint32_t combine_crc32(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t length_b);

// "crc 0123abcd", for errors.
std::string crc_text(std::uint32_t crc);

// The CRC of a payload, from the CRCs of its blocks.
std::uint32_t combine_blocks(std::span<const std::uint32_t> block_crcs, std::uint64_t payload_bytes);

}  // namespace cairn
