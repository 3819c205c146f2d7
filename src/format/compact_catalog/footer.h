// Footer: the last bytes of a compact catalog: its parts, and the pickle to which it belongs.
//
// A value; pure functions. The footer stands twice in a file, before and behind the other parts: with either copy a
// reader can tell whether the pickle is intact, although a part of the catalog is damaged. docs/format.md, section 5.1,
// has the bytes.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/byte_source.h"
#include "format/compact_catalog/coding.h"

namespace cairn::compact_catalog {

inline constexpr std::size_t kFooterBytes = 72;

struct Footer {
  std::uint32_t version = kVersionWithoutStrides;
  std::uint64_t pickle_bytes = 0;
  std::uint32_t pickle_checksum = 0;
  std::uint32_t directory_checksum = 0;
  std::uint64_t catalog_bytes = 0;  // of all parts, with both copies of the footer
  std::uint64_t directory_bytes = 0;
  std::uint64_t key_count = 0;
  std::uint32_t file_count = 0;  // of the commit record
  friend bool operator==(const Footer&, const Footer&) = default;
};

void append_footer(std::string& out, const Footer& footer);

// The footer in `bytes`, kFooterBytes of them, from `offset` of the file. Nullopt without the magic, or if a later
// version of Cairn wrote the catalog. kCorrupt if the footer is damaged.
Result<std::optional<Footer>> read_footer(std::span<const std::byte> bytes, std::uint64_t offset);

// For a `.metadata` with bytes of another checksum than recorded: whether the pickle is intact nevertheless. `front` is
// all bytes before the commit record. `pickle_bytes` is the length of the pickle by its own STOP. False if neither copy
// of the footer can tell.
bool is_pickle_intact(std::span<const std::byte> front, std::uint64_t pickle_bytes);

}  // namespace cairn::compact_catalog
