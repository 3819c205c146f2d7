// Sizes and bytes of the parts of a stored zip archive: local header, descriptor, directory entry, end records.
//
// Pure arithmetic and rendering into the caller's memory, without allocation, so that an archive can be laid out before
// its bytes exist. Follows the choices of torch (no times, UTF-8 flag, zip64 exactly where 32 bits do not do).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cairn::zip {

// One stored record. `name` carries the prefix.
struct Record {
  std::string_view name;
  std::uint64_t size = 0;
  std::uint64_t header_offset = 0;  // of the local header, from the start of the archive
  std::uint32_t crc = 0;
  // Whether CRC and sizes stand in a descriptor behind the bytes instead of in the local header, which then does not
  // depend on them. An empty record never has one.
  bool late_crc = false;

  bool has_descriptor() const { return late_crc && size != 0; }
};

// Extra bytes for a padding field in a local header; 0 or at least 4 and at most 65,000.
using PaddingBytes = std::uint32_t;

std::uint32_t local_header_bytes(const Record& record, PaddingBytes padding = 0);
std::uint32_t descriptor_bytes(const Record& record);
std::uint32_t directory_entry_bytes(const Record& record);
// What stands behind the directory. `count` entries that take `directory_bytes`, the first at `directory_offset`.
struct End {
  std::uint64_t count = 0;
  std::uint64_t directory_offset = 0;
  std::uint64_t directory_bytes = 0;
};
std::uint32_t end_bytes(const End& end);

// Each writes exactly as many bytes as its function above says, and returns the place behind them.
std::byte* render_local_header(const Record& record, std::byte* out, PaddingBytes padding = 0);
std::byte* render_descriptor(const Record& record, std::byte* out);
std::byte* render_directory_entry(const Record& record, std::byte* out);
std::byte* render_end(const End& end, std::byte* out);

}  // namespace cairn::zip
