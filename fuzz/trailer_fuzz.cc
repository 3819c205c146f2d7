// Reads any bytes as a data file with a trailer. Because checksums would refuse nearly every changed trailer, also
// reads the bytes as index and table with a true footer. An accepted trailer must cover the file and encode to an equal
// trailer.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "core/checksum.h"
#include "core/little_endian.h"
#include "decoding_bounds.h"
#include "format/manifest/trailer.h"

namespace trailer_fuzz {

namespace {

using cairn::manifest::Trailer;

constexpr std::size_t kFooterBytes = 64;

void check_trailer(const Trailer& trailer, std::span<const std::byte> file) {
  cairn::manifest::TrailerIndex index;
  index.save_id = trailer.save_id();
  index.rank = trailer.rank();
  index.file_number = trailer.file_number();
  index.file_count = trailer.file_count();
  std::uint64_t place = 0;
  for (std::size_t i = 0; i < trailer.item_count(); ++i) {
    if (trailer.frame_begin(i) != place || trailer.frame_end(i) < place) std::abort();
    place = trailer.frame_end(i) + trailer.range(i).payload_length;
    static_cast<void>(trailer.block_checksums(i));
    index.items.push_back(trailer.item(i));
  }
  if (trailer.frame_begin(trailer.item_count()) != place || place > trailer.trailer_offset()) std::abort();
  const auto layout = cairn::manifest::TrailerLayout::make(index, trailer.trailer_offset());
  if (!layout || layout->checksum_count() != trailer.checksums().size()) std::abort();
  std::vector<std::byte> file_again(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(trailer.trailer_offset()));
  file_again.resize(layout->file_bytes());
  layout->render(trailer.checksums(), std::span(file_again).subspan(trailer.trailer_offset()));
  const auto again = cairn::manifest::read_trailer(cairn::MemorySource(file_again));
  if (!again || !*again || (*again)->item_count() != trailer.item_count()) std::abort();
  for (std::size_t i = 0; i < trailer.item_count(); ++i) {
    if ((*again)->item(i).path != index.items[i].path || (*again)->item(i).fqn != index.items[i].fqn) std::abort();
  }
}

void read(std::span<const std::byte> file) {
  const cairn::MemorySource source(file);
  const auto trailer = [&] {
    const cairn::fuzz::DecodingBounds bounds(file.size());
    return cairn::manifest::read_trailer(source);
  }();
  if (trailer && *trailer) check_trailer(**trailer, file);
  const auto footer = cairn::manifest::read_trailer_footer(source);
  if (trailer && footer && footer->has_value() != trailer->has_value()) std::abort();
}

// The first two bytes give the length before the trailer in units of 16 bytes, the third byte the number of checksums.
void read_with_true_footer(std::span<const std::byte> bytes) {
  if (bytes.size() < 3) return;
  const std::size_t before = cairn::load_little_endian<std::uint16_t>(bytes.data()) * std::size_t{16};
  const std::size_t count = std::to_integer<std::size_t>(bytes[2]);
  const std::span<const std::byte> index = bytes.subspan(3);
  std::vector<std::byte> file(before + index.size() + count * 4 + kFooterBytes);
  std::memcpy(file.data() + before, index.data(), index.size());
  const std::span<std::byte> footer = std::span(file).last(kFooterBytes);
  const std::span<const std::byte> body = std::span(file).subspan(before, index.size() + count * 4);
  std::byte* to = cairn::store_little_endian(footer.data() + 4, cairn::crc32(body));
  to = cairn::store_little_endian(to, std::uint64_t{before});
  to = cairn::store_little_endian(to, std::uint64_t{index.size()});
  to = cairn::store_little_endian(to, std::uint64_t{count});
  cairn::store_little_endian(footer.data() + 52, std::uint32_t{1});
  std::memcpy(footer.data() + 56, "CAIRNTRL", 8);
  cairn::store_little_endian(footer.data(), cairn::crc32(footer.subspan(4)));
  read(file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  read(bytes);
  read_with_true_footer(bytes);
  return 0;
}

}  // namespace trailer_fuzz
