// Reads any bytes as a part of a compact catalog: as all bytes before the commit record, as a block, or as a directory.
// Because checksums would refuse nearly every input, block and directory get true checksums. Every chunk must lie in
// its tensor, and every item in a file of the commit record.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/checksum.h"
#include "core/little_endian.h"
#include "decoding_bounds.h"
#include "format/compact_catalog/footer.h"
#include "format/compact_catalog/reader.h"
#include "format/compact_catalog/writer.h"
#include "format/manifest/varint.h"

namespace compact_catalog_fuzz {

namespace {

using cairn::Box;
using cairn::CatalogTensor;
using cairn::CatalogValue;
using cairn::ItemLocation;
using cairn::Result;
using cairn::compact_catalog::CompactCatalog;
using cairn::compact_catalog::Footer;
using cairn::compact_catalog::kFooterBytes;
using cairn::compact_catalog::WantedKey;

constexpr std::uint32_t kFileCount = 4;
constexpr std::string_view kWantedName = "w";

void require(bool claim) {
  if (!claim) std::abort();
}

void check_location(const ItemLocation& location) {
  require(location.length == 0 || location.file < kFileCount);
  require(location.offset + location.length <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
}

Result<void> check_tensor(const CatalogTensor& tensor) {
  require(tensor.boxes.size() == tensor.chunk_count() * 2 * tensor.shape.size());
  for (std::size_t i = 0; i < tensor.chunk_count(); ++i) {
    require(tensor.chunk(i).within(tensor.shape));
    check_location(tensor.locations[i]);
  }
  return {};
}

Result<void> check_value(const CatalogValue& value) { return check_location(value.location), Result<void>(); }

void read(const std::string& front) {
  const cairn::MemorySource source(std::as_bytes(std::span(front)));
  const std::int64_t far = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::vector<WantedKey>> searches = {
      {{kWantedName, true, {}}},
      {{kWantedName, false, {Box::make({3}, {far - 3}).value(), Box::make({0, 1}, {5, 2}).value(), Box()}}}};
  const cairn::fuzz::DecodingBounds bounds(front.size());
  const auto opened = CompactCatalog::open(source, front.size(), kFileCount);
  if (!opened || !*opened) return;
  (void)(*opened)->for_each(check_tensor, check_value);
  for (const std::vector<WantedKey>& wanted : searches) {
    const auto found = (*opened)->find(wanted);
    if (!found) continue;
    for (const CatalogTensor& tensor : found->tensors) (void)check_tensor(tensor);
    for (const CatalogValue& value : found->values) (void)check_value(value);
  }
}

void append_checksum(std::string& out, std::string_view bytes) {
  std::byte fixed[4];
  cairn::store_little_endian(fixed, cairn::crc32(std::as_bytes(std::span(bytes))));
  out.append(reinterpret_cast<const char*>(fixed), sizeof fixed);
}

// A file with `parts` and `directory` in its catalog. The filler in place of the pickle bounds the numbers of chunks.
std::string file_of(std::string_view parts, std::string_view directory, std::uint64_t key_count) {
  std::string front(64 + parts.size() + directory.size(), 'p');
  Footer footer;
  footer.pickle_bytes = front.size();
  footer.pickle_checksum = cairn::crc32(std::as_bytes(std::span(front)));
  footer.directory_checksum = cairn::crc32(std::as_bytes(std::span(directory)));
  footer.catalog_bytes = 2 * kFooterBytes + parts.size() + directory.size();
  footer.directory_bytes = directory.size();
  footer.key_count = key_count;
  footer.file_count = kFileCount;
  append_footer(front, footer);
  front += parts;
  front += directory;
  append_footer(front, footer);
  return front;
}

std::string file_with_block(std::string_view block) {
  using cairn::manifest::append_varint;
  std::string page;
  append_varint(page, cairn::compact_catalog::hash_of_name(kWantedName));
  append_varint(page, 0);
  std::string directory;
  append_varint(directory, 1);
  append_varint(directory, 0);
  append_varint(directory, block.size());
  append_checksum(directory, block);
  append_varint(directory, 0);  // one page
  append_varint(directory, kFooterBytes + block.size());
  append_varint(directory, page.size());
  append_checksum(directory, page);
  return file_of(std::string(block) + page, directory, 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string input(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0: read(input); break;
    case 1: read(file_with_block(input)); break;
    default: read(file_of(std::string(64, 'x'), input, 1)); break;
  }
  return 0;
}

}  // namespace compact_catalog_fuzz
