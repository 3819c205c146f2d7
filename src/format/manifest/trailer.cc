#include "format/manifest/trailer.h"

#include "core/checked.h"
#include "core/checksum.h"
#include "core/little_endian.h"
#include "format/manifest/index_coding.h"
#include "format/manifest/varint.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <string_view>

namespace cairn::manifest {
namespace {

constexpr std::string_view kTrailerMagic = "CAIRNTRL";
constexpr std::uint32_t kTrailerVersion = 1;
constexpr std::uint64_t kTrailerFooterBytes = 64;
// The least bytes of an item in an index.
constexpr std::uint64_t kItemBytesMin = 4;

// The last bytes of the file. The footer's checksum covers the rest of the footer, including the body's checksum, and
// therefore vouches for the whole trailer. The commit record holds the footer's checksum. (A checksum over the whole
// trailer would be useless: the CRC of bytes that end in their own CRC is a constant.)
struct Footer {
  std::uint32_t checksum = 0;       // of the 60 bytes behind it
  std::uint32_t body_checksum = 0;  // of index and table
  std::uint64_t trailer_offset = 0;
  std::uint64_t index_bytes = 0;
  std::uint64_t checksum_count = 0;
  SaveId save_id;
  std::uint32_t rank = 0;
  std::uint32_t version = kTrailerVersion;
};

// Fills in footer.checksum and writes the footer to `out`.
void render_footer(Footer& footer, std::span<std::byte> out) {
  assert(out.size() == kTrailerFooterBytes);
  std::byte* to = store_little_endian(out.data() + 4, footer.body_checksum);
  to = store_little_endian(to, footer.trailer_offset);
  to = store_little_endian(to, footer.index_bytes);
  to = store_little_endian(to, footer.checksum_count);
  to = store_little_endian(to, footer.save_id.high);
  to = store_little_endian(to, footer.save_id.low);
  to = store_little_endian(to, footer.rank);
  to = store_little_endian(to, footer.version);
  std::memcpy(to, kTrailerMagic.data(), kTrailerMagic.size());
  footer.checksum = crc32(out.subspan(4));
  store_little_endian(out.data(), footer.checksum);
}

Footer parse_footer(const std::array<std::byte, kTrailerFooterBytes>& bytes) {
  const std::byte* from = bytes.data();
  Footer footer;
  footer.checksum = load_little_endian<std::uint32_t>(from);
  footer.body_checksum = load_little_endian<std::uint32_t>(from + 4);
  footer.trailer_offset = load_little_endian<std::uint64_t>(from + 8);
  footer.index_bytes = load_little_endian<std::uint64_t>(from + 16);
  footer.checksum_count = load_little_endian<std::uint64_t>(from + 24);
  footer.save_id.high = load_little_endian<std::uint64_t>(from + 32);
  footer.save_id.low = load_little_endian<std::uint64_t>(from + 40);
  footer.rank = load_little_endian<std::uint32_t>(from + 48);
  footer.version = load_little_endian<std::uint32_t>(from + 52);
  return footer;
}

Result<std::optional<Footer>> read_footer(const ByteSource& file) {
  if (file.size() < kTrailerFooterBytes) return std::optional<Footer>();
  std::array<std::byte, kTrailerFooterBytes> bytes;
  const std::uint64_t footer_offset = file.size() - kTrailerFooterBytes;
  CAIRN_TRY(file.read_at(footer_offset, bytes));
  if (std::memcmp(bytes.data() + kTrailerFooterBytes - kTrailerMagic.size(), kTrailerMagic.data(),
                  kTrailerMagic.size()) != 0) {
    return std::optional<Footer>();
  }
  const Footer footer = parse_footer(bytes);
  const std::uint32_t checksum = crc32(std::span(bytes).subspan(4));
  if (checksum != footer.checksum) {
    return Error(ErrorCode::kCorrupt, "the trailer's footer is damaged")
        .offset(footer_offset)
        .expected("CRC " + std::to_string(footer.checksum))
        .actual("CRC " + std::to_string(checksum));
  }
  if (footer.version != kTrailerVersion) {
    return Error(ErrorCode::kUnsupported, "a trailer of a later version")
        .offset(footer_offset)
        .expected(std::to_string(kTrailerVersion))
        .actual(std::to_string(footer.version));
  }
  const auto table_bytes = checked_multiply<std::uint64_t>(footer.checksum_count, sizeof(std::uint32_t));
  const auto body_bytes = table_bytes ? checked_add(footer.index_bytes, *table_bytes) : std::nullopt;
  if (footer.trailer_offset > footer_offset || body_bytes != footer_offset - footer.trailer_offset) {
    return Error(ErrorCode::kCorrupt, "the trailer does not end where the file does")
        .offset(footer_offset)
        .expected("a trailer at " + std::to_string(footer.trailer_offset))
        .actual("a file of " + std::to_string(file.size()) + " bytes");
  }
  return std::optional(footer);
}

std::span<const std::byte> as_bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace

void ChecksumSlots::append(std::uint64_t payload_length) {
  first_blocks_.push_back(first_blocks_.back() + checksum_block_count(payload_length));
}

Result<TrailerLayout> TrailerLayout::make(const TrailerIndex& index, std::uint64_t trailer_offset) {
  TrailerLayout layout;
  layout.save_id_ = index.save_id;
  layout.rank_ = index.rank;
  layout.trailer_offset_ = trailer_offset;
  append_varint(layout.index_, index.file_number);
  append_varint(layout.index_, index.file_count);
  append_varint(layout.index_, index.items.size());
  std::uint64_t previous_end = 0;
  for (const TrailerItem& item : index.items) {
    CAIRN_TRY(check_item(item));
    const ItemRange& range = item.range;
    if (range.item_offset < previous_end || !range_within(range.item_offset, range.item_length, trailer_offset)) {
      return Error(ErrorCode::kInvalidArgument, "an item that overlaps the one before it or the trailer")
          .key(item.fqn)
          .offset(range.item_offset);
    }
    append_item(layout.index_, item, previous_end);
    layout.slots_.append(range.payload_length);
    previous_end = range.item_offset + range.item_length;
  }
  return layout;
}

std::uint64_t TrailerLayout::trailer_bytes() const {
  return index_.size() + checksum_count() * sizeof(std::uint32_t) + kTrailerFooterBytes;
}

std::uint32_t TrailerLayout::render(std::span<const std::uint32_t> checksums, std::span<std::byte> out) const {
  assert(checksums.size() == checksum_count() && out.size() == trailer_bytes());
  std::memcpy(out.data(), index_.data(), index_.size());
  std::memcpy(out.data() + index_.size(), checksums.data(), checksums.size_bytes());
  Footer footer;
  footer.body_checksum = crc32(out.first(out.size() - kTrailerFooterBytes));
  footer.trailer_offset = trailer_offset_;
  footer.index_bytes = index_.size();
  footer.checksum_count = checksums.size();
  footer.save_id = save_id_;
  footer.rank = rank_;
  render_footer(footer, out.last(kTrailerFooterBytes));
  return footer.checksum;
}

// Builds a Trailer from index and table, after their checksums have been compared.
class TrailerReader {
 public:
  static Result<Trailer> read(const ByteSource& file, const Footer& footer) {
    Trailer trailer;
    trailer.save_id_ = footer.save_id;
    trailer.rank_ = footer.rank;
    trailer.checksum_ = footer.checksum;
    trailer.trailer_offset_ = footer.trailer_offset;
    CAIRN_TRY(read_body(file, footer, trailer));
    if (auto parsed = parse_index(trailer); !parsed) return as_corrupt(std::move(parsed).error(), footer);
    if (trailer.slots_.count() != footer.checksum_count) {
      return Error(ErrorCode::kCorrupt, "the trailer's table does not fit its index")
          .offset(footer.trailer_offset)
          .expected(std::to_string(trailer.slots_.count()) + " checksums")
          .actual(std::to_string(footer.checksum_count));
    }
    return trailer;
  }

 private:
  static Result<void> read_body(const ByteSource& file, const Footer& footer, Trailer& trailer) {
    trailer.index_.resize(footer.index_bytes);
    trailer.checksums_.resize(footer.checksum_count);
    const std::span<std::byte> index = std::as_writable_bytes(std::span(trailer.index_));
    const std::span<std::byte> table = std::as_writable_bytes(std::span(trailer.checksums_));
    CAIRN_TRY(file.read_at(footer.trailer_offset, index));
    CAIRN_TRY(file.read_at(footer.trailer_offset + footer.index_bytes, table));
    const std::uint32_t checksum = crc32(table, crc32(index));
    if (checksum == footer.body_checksum) return {};
    return Error(ErrorCode::kCorrupt, "the trailer is damaged")
        .offset(footer.trailer_offset)
        .expected("CRC " + std::to_string(footer.body_checksum))
        .actual("CRC " + std::to_string(checksum));
  }

  static Result<void> parse_index(Trailer& trailer) {
    CodedReader reader(as_bytes(trailer.index_), trailer.trailer_offset_);
    CAIRN_TRY_ASSIGN(trailer.file_number_, read_u32(reader));
    CAIRN_TRY_ASSIGN(trailer.file_count_, read_u32(reader));
    CAIRN_TRY_ASSIGN(const std::uint64_t count, reader.varint());
    if (count > reader.left() / kItemBytesMin) return reader.damaged("more items than there are bytes");
    trailer.item_places_.reserve(count);
    trailer.ranges_.reserve(count);
    TrailerItem item;
    std::uint64_t previous_end = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      trailer.item_places_.push_back(reader.position());
      CAIRN_TRY(read_item(reader, previous_end, item));
      previous_end = item.range.item_offset + item.range.item_length;
      if (previous_end > trailer.trailer_offset_) return reader.damaged("an item that overlaps the trailer");
      trailer.ranges_.push_back(item.range);
      trailer.slots_.append(item.range.payload_length);
    }
    if (reader.left() != 0) return reader.damaged("bytes left over in the index");
    return {};
  }

  static Result<std::uint32_t> read_u32(CodedReader& reader) {
    CAIRN_TRY_ASSIGN(const std::uint64_t value, reader.varint());
    if (value > UINT32_MAX) return reader.damaged("a number beyond 2^32");
    return static_cast<std::uint32_t>(value);
  }

  // An invalid box in an index is kInvalidArgument for a writer of the index and kCorrupt for a reader of the file.
  static Error as_corrupt(Error error, const Footer& footer) {
    Error corrupt(ErrorCode::kCorrupt, "the trailer's index contradicts itself: " + error.message());
    if (error.key()) corrupt = std::move(corrupt).key(*error.key());
    if (error.expected()) corrupt = std::move(corrupt).expected(*error.expected());
    if (error.actual()) corrupt = std::move(corrupt).actual(*error.actual());
    return std::move(corrupt).offset(error.offset().value_or(footer.trailer_offset));
  }
};

TrailerItem Trailer::item(std::size_t item) const {
  CodedReader reader(as_bytes(index_).subspan(item_places_[item]), trailer_offset_);
  const std::uint64_t previous_end = item == 0 ? 0 : ranges_[item - 1].item_offset + ranges_[item - 1].item_length;
  TrailerItem decoded;
  read_item(reader, previous_end, decoded).value();  // parse_index() decoded the item before: no failure is possible
  return decoded;
}

std::optional<std::size_t> Trailer::item_at(std::uint64_t item_offset) const {
  const auto behind =
      std::upper_bound(ranges_.begin(), ranges_.end(), item_offset,
                       [](std::uint64_t offset, const ItemRange& range) { return offset < range.item_offset; });
  if (behind == ranges_.begin() || std::prev(behind)->item_offset != item_offset) return std::nullopt;
  return static_cast<std::size_t>(behind - ranges_.begin()) - 1;
}

std::span<const std::uint32_t> Trailer::block_checksums(std::size_t item) const {
  return checksums().subspan(slots_.first_block(item), slots_.block_count(item));
}

std::uint64_t Trailer::frame_begin(std::size_t frame) const {
  return frame == 0 ? 0 : ranges_[frame - 1].payload_offset + ranges_[frame - 1].payload_length;
}

std::uint64_t Trailer::frame_end(std::size_t frame) const {
  return frame == ranges_.size() ? trailer_offset_ : ranges_[frame].payload_offset;
}

Result<std::optional<Trailer>> read_trailer(const ByteSource& file) {
  CAIRN_TRY_ASSIGN(const std::optional<Footer> footer, read_footer(file));
  if (!footer) return std::optional<Trailer>();
  CAIRN_TRY_ASSIGN(Trailer trailer, TrailerReader::read(file, *footer));
  return std::optional(std::move(trailer));
}

Result<std::optional<TrailerFooter>> read_trailer_footer(const ByteSource& file) {
  CAIRN_TRY_ASSIGN(const std::optional<Footer> footer, read_footer(file));
  if (!footer) return std::optional<TrailerFooter>();
  return std::optional(TrailerFooter{footer->save_id, footer->rank, footer->checksum, footer->trailer_offset});
}

}  // namespace cairn::manifest
