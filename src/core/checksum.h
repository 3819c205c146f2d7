// Checksum: CRC-32 with the zip polynomial, and the algebra that lets one pass over the bytes serve two uses.
//
// Pure functions. A CRC here is the finished value, as zlib's crc32() returns it and zip files store it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn {

// Payloads carry one checksum for each chunk of this many bytes, the last chunk being what is left.
inline constexpr std::uint64_t kChecksumChunkBytes = 64 * 1024;

constexpr std::uint64_t checksum_chunk_count(std::uint64_t payload_bytes) {
  return payload_bytes / kChecksumChunkBytes + (payload_bytes % kChecksumChunkBytes != 0 ? 1 : 0);
}

// The CRC of `bytes` appended to something whose CRC is `seed` (0 for nothing).
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t seed = 0);

// Copies `source` to `target`, of the same size, and returns crc32(source, seed): one pass through memory.
std::uint32_t copy_with_crc32(std::span<std::byte> target, std::span<const std::byte> source, std::uint32_t seed = 0);

// The CRC of A followed by B from those of A and B.
std::uint32_t combine_crc32(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t length_b);

// "crc 0123abcd", for errors.
std::string crc_text(std::uint32_t crc);

// The CRC of a payload from those of its chunks.
std::uint32_t combine_chunks(std::span<const std::uint32_t> chunk_crcs, std::uint64_t payload_bytes);

}  // namespace cairn
