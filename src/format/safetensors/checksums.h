// checksums: the entry "cairn_checksums" that Cairn writes into a header's metadata: checksums of the header and of
// every byte of the tensors.
//
// The format allows no bytes behind the tensors, so the checksums stand in the header, as hexadecimal digits of a fixed
// number: eight digits of the CRC of the header, then eight digits for each checksum of the tensors' bytes, in the
// order of the bytes. The CRC of the header is computed with zeros in place of all digits. Three marks show that Cairn
// wrote the header: the entry is the first entry of the text; the text ends in at least eight spaces; the tensors begin
// at a multiple of 4096 bytes. The library safetensors pads with at most seven spaces. Without the marks another
// program has copied the metadata from a file of Cairn's, and the checksums are ignored. Pure functions.
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
// The tensors of a file with checksums begin at a multiple of the first number, and the header's text ends in at least
// so many spaces.
inline constexpr std::uint64_t kChecksummedDataAlignment = 4096;
inline constexpr std::size_t kChecksummedSpacesMin = 8;

// A checksum covers a block of a tensor. A block has 64 KiB. If a file has more than kBlocksMax blocks, the size of a
// block is doubled until the file has at most kBlocksMax blocks, up to kBlockBytesMax: the format limits the size of
// the header, and programs of Hugging Face Hub refuse headers above 25 MB.
struct ChecksumCoverage {
  std::uint64_t block_bytes = 0;
  std::uint64_t blocks = 0;  // of all tensors; the last block of a tensor may be short

  static constexpr std::uint64_t kBlocksMax = std::uint64_t{1} << 21;
  static constexpr std::uint64_t kBlockBytesMax = std::uint64_t{4} << 20;
};
// `lengths` are the bytes of the file's tensors. More than kBlocksMax blocks if no size of a block suffices.
ChecksumCoverage coverage_of(std::span<const std::uint64_t> lengths);

// The value of the entry before the checksums are known: digits of zero.
std::string blank_checksums(const ChecksumCoverage& coverage);

// Writes the checksums into a rendered header, which has blank_checksums() as the first entry of its metadata.
void write_checksums(std::span<std::byte> header, std::span<const std::uint32_t> checksums);

// The checksums of a header's text, without the 8 bytes of the length. Nullopt if the text has no checksums of its own.
// kCorrupt if the CRC of the header differs, if the number of checksums is wrong, or if only the entry is damaged.
Result<std::optional<std::vector<std::uint32_t>>> read_checksums(std::string_view text,
                                                                 const ChecksumCoverage& coverage);

}  // namespace cairn::safetensors
