#include "format/zip/record_writer.h"

#include <cassert>
#include <cstring>

#include "core/little_endian.h"
#include "format/zip/layout.h"

namespace cairn::zip {
namespace {

constexpr std::uint16_t kFirstDay = 0x0021;  // 1 January 1980, the least date of zip: stands for "no date"
constexpr std::uint16_t kPlainVersion = 10;
constexpr std::uint16_t kZip64Version = 45;

// Values of 0xFFFFFFFF and above go into a zip64 field.
constexpr bool needs_64_bits(std::uint64_t value) { return value >= kSee64; }
constexpr std::uint32_t low_part(std::uint64_t value) {
  return needs_64_bits(value) ? kSee64 : static_cast<std::uint32_t>(value);
}

class Cursor {
 public:
  explicit Cursor(std::byte* out) : out_(out) {}
  Cursor& u16(std::uint64_t value) { return put(static_cast<std::uint16_t>(value)); }
  Cursor& u32(std::uint64_t value) { return put(static_cast<std::uint32_t>(value)); }
  Cursor& u64(std::uint64_t value) { return put(value); }
  Cursor& text(std::string_view text) {
    std::memcpy(out_, text.data(), text.size());
    out_ += text.size();
    return *this;
  }
  Cursor& fill(char filler, std::size_t count) {
    std::memset(out_, filler, count);
    out_ += count;
    return *this;
  }
  std::byte* end() const { return out_; }

 private:
  template <typename T>
  Cursor& put(T value) {
    out_ = store_little_endian(out_, value);
    return *this;
  }
  std::byte* out_;
};

std::uint16_t flags_of(const Record& record) {
  return static_cast<std::uint16_t>(kUtf8Flag | (record.has_descriptor() ? kDescriptorFlag : 0));
}

// Bytes of the zip64 field. The local header's field does not hold the offset.
std::uint32_t local_zip64_bytes(const Record& record) { return needs_64_bits(record.size) ? 4 + 16 : 0; }
std::uint32_t directory_zip64_bytes(const Record& record) {
  const std::uint32_t body = (needs_64_bits(record.size) ? 16u : 0) + (needs_64_bits(record.header_offset) ? 8u : 0);
  return body == 0 ? 0 : 4 + body;
}

bool needs_zip64_end(const End& end) {
  return end.count >= kSee64Short || needs_64_bits(end.directory_offset) || needs_64_bits(end.directory_bytes);
}

}  // namespace

std::uint32_t local_header_bytes(const Record& record, PaddingBytes padding) {
  return kLocalHeaderBytes + static_cast<std::uint32_t>(record.name.size()) + local_zip64_bytes(record) + padding;
}

std::uint32_t descriptor_bytes(const Record& record) {
  if (!record.has_descriptor()) return 0;
  return needs_64_bits(record.size) ? 24 : 16;
}

std::uint32_t directory_entry_bytes(const Record& record) {
  return kDirectoryEntryBytes + static_cast<std::uint32_t>(record.name.size()) + directory_zip64_bytes(record);
}

std::uint32_t end_bytes(const End& end) {
  return needs_zip64_end(end) ? kZip64EndBytes + kZip64LocatorBytes + kEndBytes : kEndBytes;
}

std::byte* render_local_header(const Record& record, std::byte* out, PaddingBytes padding) {
  assert(padding == 0 || (padding >= 4 && padding <= 65000));
  const bool big = needs_64_bits(record.size);
  const bool late = record.has_descriptor();
  Cursor cursor(out);
  cursor.u32(kLocalHeaderSignature)
      .u16(big ? kZip64Version : kPlainVersion)
      .u16(flags_of(record))
      .u16(0)
      .u16(0)
      .u16(kFirstDay);
  cursor.u32(late ? 0 : record.crc).u32(late ? 0 : low_part(record.size)).u32(late ? 0 : low_part(record.size));
  cursor.u16(record.name.size()).u16(local_zip64_bytes(record) + padding).text(record.name);
  if (big) cursor.u16(1).u16(16).u64(record.size).u64(record.size);
  if (padding != 0) cursor.text("FB").u16(padding - 4).fill('Z', padding - 4);
  return cursor.end();
}

std::byte* render_descriptor(const Record& record, std::byte* out) {
  Cursor cursor(out);
  if (!record.has_descriptor()) return out;
  cursor.u32(kDescriptorSignature).u32(record.crc);
  if (needs_64_bits(record.size)) return cursor.u64(record.size).u64(record.size).end();
  return cursor.u32(record.size).u32(record.size).end();
}

std::byte* render_directory_entry(const Record& record, std::byte* out) {
  const std::uint32_t extra = directory_zip64_bytes(record);
  const std::uint16_t version = extra != 0 ? kZip64Version : kPlainVersion;
  Cursor cursor(out);
  cursor.u32(kDirectoryEntrySignature).u16(version).u16(version).u16(flags_of(record)).u16(0).u16(0).u16(kFirstDay);
  cursor.u32(record.crc).u32(low_part(record.size)).u32(low_part(record.size));
  cursor.u16(record.name.size()).u16(extra).u16(0).u16(0).u16(0).u32(0).u32(low_part(record.header_offset));
  cursor.text(record.name);
  if (extra != 0) cursor.u16(1).u16(extra - 4);
  if (needs_64_bits(record.size)) cursor.u64(record.size).u64(record.size);
  if (needs_64_bits(record.header_offset)) cursor.u64(record.header_offset);
  return cursor.end();
}

std::byte* render_end(const End& end, std::byte* out) {
  Cursor cursor(out);
  if (needs_zip64_end(end)) {
    cursor.u32(kZip64EndSignature).u64(kZip64EndBytes - 12).u16(kZip64Version).u16(kZip64Version).u32(0).u32(0);
    cursor.u64(end.count).u64(end.count).u64(end.directory_bytes).u64(end.directory_offset);
    cursor.u32(kZip64LocatorSignature).u32(0).u64(end.directory_offset + end.directory_bytes).u32(1);
  }
  const std::uint16_t count = end.count >= kSee64Short ? kSee64Short : static_cast<std::uint16_t>(end.count);
  cursor.u32(kEndSignature).u16(0).u16(0).u16(count).u16(count);
  return cursor.u32(low_part(end.directory_bytes)).u32(low_part(end.directory_offset)).u16(0).end();
}

}  // namespace cairn::zip
