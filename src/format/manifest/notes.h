// The notes of a checkpoint: a JSON object that the caller of the save has given, in a section of `.metadata` directly
// before the commit record.
//
// Pure functions. The commit record counts the section among the bytes before its body, so readers that do not know the
// section skip it. docs/format.md, section 6.1, has the bytes.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/byte_source.h"

namespace cairn::manifest {

inline constexpr std::size_t kNotesBytesMax = 64 * 1024;

using Metrics = std::vector<std::pair<std::string, double>>;  // names and finite numbers

// kInvalidArgument unless `notes` is a JSON object of at most kNotesBytesMax bytes of UTF-8, whose member "metrics", if
// there is one, is an object of finite numbers. Nothing is nested deeper than json::kJsonDepthMax.
Result<void> check_notes(std::string_view notes);

// The member "metrics" of notes, in the order of the text. kCorrupt if check_notes() refuses the notes.
Result<Metrics> metrics_in(std::string_view notes);

// The section, to be appended to the bytes before the commit record. Empty for empty notes. `notes` is checked.
std::string encode_notes(std::string_view notes);

// The place of a section in a `.metadata` file.
struct NotesPlace {
  std::uint64_t section_bytes = 0;  // 0: the file has no notes
  std::uint64_t text_offset = 0;
  std::uint64_t text_bytes = 0;
  std::uint32_t text_checksum = 0;
};

// The section at the end of the first `front_bytes` bytes of `file`. Reads the section's footer alone. A section of a
// later version has no text. kCorrupt if the footer is damaged.
Result<NotesPlace> find_notes(const ByteSource& file, std::uint64_t front_bytes);

// The text; empty without notes. kCorrupt if the text is damaged, or if check_notes() refuses it.
Result<std::string> read_notes(const ByteSource& file, const NotesPlace& place);

}  // namespace cairn::manifest
