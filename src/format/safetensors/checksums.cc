#include "format/safetensors/checksums.h"

#include "core/checksum.h"
#include "core/little_endian.h"
#include "format/safetensors/header.h"

#include <array>
#include <cassert>
#include <charconv>

namespace cairn::safetensors {
namespace {

// The begin of the text of a header with checksums.
constexpr std::string_view kTextBegin = R"({"__metadata__":{"cairn_checksums":")";
constexpr std::size_t kDigits = 8;  // of a checksum

void write_digits(char* out, std::uint32_t checksum) {
  constexpr std::string_view kHex = "0123456789abcdef";
  for (std::size_t i = 0; i < kDigits; ++i) out[i] = kHex[checksum >> (28 - 4 * i) & 0xF];
}

std::optional<std::uint32_t> read_digits(std::string_view digits) {
  if (digits.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  std::uint32_t checksum = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, checksum, 16);
  return error == std::errc() && stop == end ? std::optional(checksum) : std::nullopt;
}

// The CRC of length and text of a header, with `digit_count` zeros in place of the digits.
std::uint32_t crc_of(std::string_view text, std::uint64_t digit_count) {
  std::array<std::byte, kLengthBytes> length{};
  store_little_endian(length.data(), std::uint64_t{text.size()});
  const auto bytes = std::as_bytes(std::span(text));
  std::uint32_t crc = crc32(bytes.first(kTextBegin.size()), crc32(length));
  const std::string zeros(std::min<std::uint64_t>(digit_count, 64 * 1024), '0');
  for (std::uint64_t left = digit_count; left > 0;) {
    const std::uint64_t some = std::min<std::uint64_t>(left, zeros.size());
    crc = crc32(std::as_bytes(std::span(zeros)).first(some), crc);
    left -= some;
  }
  return crc32(bytes.subspan(kTextBegin.size() + digit_count), crc);
}

}  // namespace

ChecksumCoverage coverage_of(std::span<const std::uint64_t> lengths) {
  ChecksumCoverage coverage{kChecksumBlockBytes, 0};
  while (true) {
    coverage.blocks = 0;
    for (const std::uint64_t length : lengths) {
      coverage.blocks += length / coverage.block_bytes + (length % coverage.block_bytes != 0 ? 1 : 0);
    }
    const bool is_final = coverage.block_bytes == ChecksumCoverage::kBlockBytesMax;
    if (coverage.blocks <= ChecksumCoverage::kBlocksMax || is_final) return coverage;
    coverage.block_bytes *= 2;
  }
}

std::string blank_checksums(const ChecksumCoverage& coverage) {
  return std::string((coverage.blocks + 1) * kDigits, '0');
}

void write_checksums(std::span<std::byte> header, std::span<const std::uint32_t> checksums) {
  auto* const text = reinterpret_cast<char*>(header.data()) + kLengthBytes;
  const std::uint64_t digit_count = (checksums.size() + 1) * kDigits;
  assert(std::string_view(text, header.size() - kLengthBytes).starts_with(kTextBegin));
  char* digits = text + kTextBegin.size();
  assert(digits[digit_count] == '"');
  write_digits(digits, crc_of({text, header.size() - kLengthBytes}, digit_count));
  for (const std::uint32_t checksum : checksums) write_digits(digits += kDigits, checksum);
}

Result<std::optional<std::vector<std::uint32_t>>> read_checksums(std::string_view text,
                                                                 const ChecksumCoverage& coverage) {
  std::optional<std::vector<std::uint32_t>> checksums;
  const bool is_padded = text.ends_with(std::string(kChecksummedSpacesMin, ' ')) &&
                         (kLengthBytes + text.size()) % kChecksummedDataAlignment == 0;
  if (!is_padded) return checksums;
  if (!text.starts_with(kTextBegin)) {
    const bool has_save_id = text.find('"' + std::string(kSaveIdName) + '"') != std::string_view::npos;
    if (!has_save_id) return checksums;
    return Error(ErrorCode::kCorrupt, "the checksums of a safetensors file of Cairn's are damaged or missing")
        .offset(kLengthBytes)
        .expected(kTextBegin);
  }
  const std::size_t digit_count = text.find('"', kTextBegin.size()) - kTextBegin.size();
  const std::string_view digits = text.substr(kTextBegin.size(), digit_count);
  const auto damaged = [](std::uint64_t offset, const std::string& expected, const std::string& actual) {
    return Error(ErrorCode::kCorrupt, "the checksums in the header of a safetensors file are damaged")
        .offset(kLengthBytes + kTextBegin.size() + offset)
        .expected(expected)
        .actual(actual);
  };
  if (digits.size() != (coverage.blocks + 1) * kDigits) {
    return damaged(0, std::to_string((coverage.blocks + 1) * kDigits) + " digits", std::to_string(digits.size()));
  }
  checksums.emplace();
  checksums->reserve(coverage.blocks);
  for (std::size_t place = 0; place < digits.size(); place += kDigits) {
    const std::optional<std::uint32_t> checksum = read_digits(digits.substr(place, kDigits));
    if (!checksum) return damaged(place, "hexadecimal digits", std::string(digits.substr(place, kDigits)));
    if (place != 0) {
      checksums->push_back(*checksum);
      continue;
    }
    const std::uint32_t actual = crc_of(text, digits.size());
    if (actual == *checksum) continue;
    return Error(ErrorCode::kCorrupt, "the checksum of the header of a safetensors file differs")
        .offset(0)
        .expected(crc_text(*checksum))
        .actual(crc_text(actual));
  }
  return checksums;
}

}  // namespace cairn::safetensors
