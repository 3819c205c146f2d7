// Sizes and bytes of the parts of a stored zip archive: local header, descriptor, directory entry, end records.
//
// Pure arithmetic and rendering into the caller's memory, without allocation: an archive can be laid out before its
// bytes exist. Makes the choices of torch (no times, UTF-8 flag, zip64 exactly where 32 bits do not suffice).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cairn::zip {

// A stored record. `name` includes the prefix.
struct Record {
  std::string_view name;
  std::uint64_t size = 0;
  std::uint64_t header_offset = 0;  // of the local header, from the start of the archive
  std::uint32_t crc = 0;
  // Whether CRC and sizes are in a descriptor behind the bytes instead of in the local header. The local header then
  // does not depend on CRC and sizes. An empty record never has a descriptor.
  bool late_crc = false;

  bool has_descriptor() const { return late_crc && size != 0; }
};

// Size of a padding field in a local header; 0, or 4 to 65,000.
using PaddingBytes = std::uint32_t;

std::uint32_t local_header_bytes(const Record& record, PaddingBytes padding = 0);
std::uint32_t descriptor_bytes(const Record& record);
std::uint32_t directory_entry_bytes(const Record& record);
// The end records. `count` entries take `directory_bytes` bytes, from `directory_offset` on.
struct End {
  std::uint64_t count = 0;
  std::uint64_t directory_offset = 0;
  std::uint64_t directory_bytes = 0;
};
std::uint32_t end_bytes(const End& end);

// Each function writes exactly the bytes counted by its counterpart above, and returns the place behind the written
// bytes.
std::byte* render_local_header(const Record& record, std::byte* out, PaddingBytes padding = 0);
std::byte* render_descriptor(const Record& record, std::byte* out);
std::byte* render_directory_entry(const Record& record, std::byte* out);
std::byte* render_end(const End& end, std::byte* out);

}  // namespace cairn::zip
