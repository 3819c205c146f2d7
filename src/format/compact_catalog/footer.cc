#include "format/compact_catalog/footer.h"

#include <cstring>
#include <string_view>

#include "core/checksum.h"
#include "core/little_endian.h"

namespace cairn::compact_catalog {
namespace {

constexpr std::string_view kFooterMagic = "CAIRNCAT";
constexpr std::size_t kFooterChecksumBytes = 4;

template <std::unsigned_integral T>
void append_fixed_to(std::string& out, T value) {
  std::byte bytes[sizeof value];
  store_little_endian(bytes, value);
  out.append(reinterpret_cast<const char*>(bytes), sizeof value);
}

}  // namespace

void append_footer(std::string& out, const Footer& footer) {
  std::string fields;
  append_fixed_to(fields, footer.directory_checksum);
  append_fixed_to(fields, footer.pickle_bytes);
  append_fixed_to(fields, footer.pickle_checksum);
  append_fixed_to(fields, footer.version);
  append_fixed_to(fields, footer.catalog_bytes);
  append_fixed_to(fields, footer.directory_bytes);
  append_fixed_to(fields, footer.key_count);
  append_fixed_to(fields, footer.file_count);
  fields.append(kFooterBytes - kFooterChecksumBytes - kFooterMagic.size() - fields.size(), '\0');
  fields += kFooterMagic;
  append_fixed_to(out, crc32(std::as_bytes(std::span(fields))));
  out += fields;
}

Result<std::optional<Footer>> read_footer(std::span<const std::byte> bytes, std::uint64_t offset) {
  if (bytes.size() != kFooterBytes) return std::optional<Footer>();
  const std::byte* at = bytes.data();
  if (std::memcmp(at + kFooterBytes - kFooterMagic.size(), kFooterMagic.data(), kFooterMagic.size()) != 0) {
    return std::optional<Footer>();
  }
  const auto expected = load_little_endian<std::uint32_t>(at);
  const std::uint32_t actual = crc32(bytes.subspan(kFooterChecksumBytes));
  if (expected != actual) {
    return Error(ErrorCode::kCorrupt, "the footer of the compact catalog is damaged")
        .offset(offset)
        .expected(crc_text(expected))
        .actual(crc_text(actual));
  }
  Footer footer;
  footer.version = load_little_endian<std::uint32_t>(at + 20);
  if (footer.version != kVersionWithoutStrides && footer.version != kVersionWithStrides) return std::optional<Footer>();
  footer.directory_checksum = load_little_endian<std::uint32_t>(at + 4);
  footer.pickle_bytes = load_little_endian<std::uint64_t>(at + 8);
  footer.pickle_checksum = load_little_endian<std::uint32_t>(at + 16);
  footer.catalog_bytes = load_little_endian<std::uint64_t>(at + 24);
  footer.directory_bytes = load_little_endian<std::uint64_t>(at + 32);
  footer.key_count = load_little_endian<std::uint64_t>(at + 40);
  footer.file_count = load_little_endian<std::uint32_t>(at + 48);
  return std::optional(footer);
}

bool is_pickle_intact(std::span<const std::byte> front, std::uint64_t pickle_bytes) {
  if (front.size() < kFooterBytes || pickle_bytes > front.size() - kFooterBytes) return false;
  for (const std::uint64_t offset : {front.size() - kFooterBytes, pickle_bytes}) {
    const Result<std::optional<Footer>> footer = read_footer(front.subspan(offset, kFooterBytes), offset);
    if (!footer || !*footer || (*footer)->pickle_bytes != pickle_bytes) continue;
    return crc32(front.first(pickle_bytes)) == (*footer)->pickle_checksum;
  }
  return false;
}

}  // namespace cairn::compact_catalog
