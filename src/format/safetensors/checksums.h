// checksums: the entry "cairn_checksums" that Cairn writes into a header's metadata: checksums of the header and of
// every byte of the tensors.
//
// The format allows no bytes behind the tensors, so the checksums stand in the header, as hexadecimal digits of a fixed
// number: eight digits of the CRC of the header, then eight digits for each checksum of the tensors' bytes, in the
// order of the bytes. The CRC of the header is computed with zeros in place of all digits. The entry is the first entry
// of the header's text, and the tensors begin at a multiple of 4096 bytes: a header without both marks was written by
// another program, which has copied the metadata from a file of Cairn's. Such checksums are ignored. Pure functions.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::safetensors {

inline constexpr std::string_view kChecksumsName = "cairn_checksums";
inline constexpr std::string_view kSaveIdName = "cairn_save_id";
// The tensors of a file with checksums begin at a multiple of this number.
inline constexpr std::uint64_t kChecksummedDataAlignment = 4096;

// Which bytes a checksum covers: a block of 64 KiB of a tensor, or a whole tensor if the blocks would be more than
// 4,194,304 (256 GiB of tensors): the format limits the header's size. Both counts are of the file's tensors.
struct ChecksumCoverage {
  std::uint64_t blocks = 0;   // of all tensors; the last block of a tensor may be short
  std::uint64_t tensors = 0;  // with or without elements

  static constexpr std::uint64_t kBlocksMax = std::uint64_t{1} << 22;
  bool is_by_block() const { return blocks <= kBlocksMax; }
  std::uint64_t count() const { return is_by_block() ? blocks : tensors; }
};

// The value of the entry before the checksums are known: digits of zero.
std::string blank_checksums(const ChecksumCoverage& coverage);

// Writes the checksums into a rendered header, which has blank_checksums() as the first entry of its metadata.
void write_checksums(std::span<std::byte> header, std::span<const std::uint32_t> checksums);

// The checksums of a header's text, without the 8 bytes of the length. Nullopt if the text has no checksums of its own.
// kCorrupt if the CRC of the header differs, or if the number of checksums is wrong.
Result<std::optional<std::vector<std::uint32_t>>> read_checksums(std::string_view text,
                                                                 const ChecksumCoverage& coverage);

}  // namespace cairn::safetensors
