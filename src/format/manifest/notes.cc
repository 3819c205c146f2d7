#include "format/manifest/notes.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "core/checksum.h"
#include "core/little_endian.h"
#include "format/json/json_reader.h"
#include "format/manifest/varint.h"

namespace cairn::manifest {
namespace {

constexpr std::string_view kNotesMagic = "CAIRNOTE";
constexpr std::uint32_t kNotesVersion = 1;
constexpr std::size_t kNotesFooterBytes = 24;
constexpr std::size_t kChecksumBytes = 4;
constexpr std::string_view kMetricsName = "metrics";
constexpr std::size_t kFoundCharactersMax = 60;  // of a refused metric, in the error

Error refused(ErrorCode code, std::string what) {
  return Error(code, std::move(what)).expected("an object with finite numbers as \"metrics\", if any");
}

std::optional<double> finite_number(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) return std::nullopt;
  return number;
}

// The reader stands at the value of "metrics".
Result<Metrics> read_metrics(json::JsonReader& reader, ErrorCode code) {
  if (!reader.begin_object()) return refused(code, "the metrics are not a JSON object");
  Metrics metrics;
  while (true) {
    CAIRN_TRY_ASSIGN(std::optional<std::string> name, reader.next_name());
    if (!name) return metrics;
    CAIRN_TRY_ASSIGN(const std::string_view value, reader.read_value_text());
    const std::optional<double> number = finite_number(value);
    if (!number) {
      return refused(code, "a metric is not a finite number")
          .key(std::string(kMetricsName) + "." + *name)
          .actual(std::string(value.substr(0, kFoundCharactersMax)));
    }
    metrics.emplace_back(*std::move(name), *number);
  }
}

Result<Metrics> read_object(std::string_view notes, ErrorCode code) {
  json::JsonReader reader(notes, 0);
  CAIRN_TRY(reader.begin_object());
  std::optional<Metrics> metrics;
  while (true) {
    CAIRN_TRY_ASSIGN(const std::optional<std::string> name, reader.next_name());
    if (!name) break;
    if (*name != kMetricsName) {
      CAIRN_TRY(reader.skip_value());
    } else if (metrics) {
      return refused(code, "the notes have \"metrics\" twice");
    } else {
      CAIRN_TRY_ASSIGN(metrics, read_metrics(reader, code));
    }
  }
  CAIRN_TRY(reader.end());
  return std::move(metrics).value_or(Metrics());
}

// Errors have the code `code`.
Result<Metrics> read_text(std::string_view notes, ErrorCode code) {
  if (notes.size() > kNotesBytesMax) {
    return Error(code, "the notes are too long")
        .expected("at most " + std::to_string(kNotesBytesMax) + " bytes of JSON")
        .actual(std::to_string(notes.size()) + " bytes");
  }
  Result<Metrics> metrics = read_object(notes, code);
  if (metrics || metrics.error().code() == code) return metrics;
  const Error& found = metrics.error();  // of the JSON reader
  return Error(code, "the notes are not a JSON object")
      .offset(found.offset().value_or(0))
      .expected(found.expected().value_or("a JSON object"))
      .actual(found.actual().value_or("other text"));
}

std::uint32_t text_checksum_of(std::string_view text) { return crc32(std::as_bytes(std::span(text))); }

Error damaged_notes(const char* what, std::uint64_t offset, std::uint32_t expected, std::uint32_t actual) {
  return Error(ErrorCode::kCorrupt, what).offset(offset).expected(crc_text(expected)).actual(crc_text(actual));
}

}  // namespace

Result<void> check_notes(std::string_view notes) {
  CAIRN_TRY(read_text(notes, ErrorCode::kInvalidArgument));
  return {};
}

Result<Metrics> metrics_in(std::string_view notes) {
  if (notes.empty()) return Metrics();
  return read_text(notes, ErrorCode::kCorrupt);
}

std::string encode_notes(std::string_view notes) {
  if (notes.empty()) return {};
  std::string footer;
  append_fixed(footer, text_checksum_of(notes));
  append_fixed(footer, static_cast<std::uint32_t>(notes.size()));
  append_fixed(footer, kNotesVersion);
  footer += kNotesMagic;
  std::string section(notes);
  append_fixed(section, text_checksum_of(footer));
  return section + footer;
}

Result<NotesPlace> find_notes(const ByteSource& file, std::uint64_t front_bytes) {
  if (front_bytes < kNotesFooterBytes || front_bytes > file.size()) return NotesPlace();
  const std::uint64_t offset = front_bytes - kNotesFooterBytes;
  std::array<std::byte, kNotesFooterBytes> bytes;
  CAIRN_TRY(file.read_at(offset, bytes));
  const std::byte* footer = bytes.data();
  if (std::memcmp(footer + kNotesFooterBytes - kNotesMagic.size(), kNotesMagic.data(), kNotesMagic.size()) != 0) {
    return NotesPlace();
  }
  const auto expected = load_little_endian<std::uint32_t>(footer);
  const std::uint32_t actual = crc32(std::span<const std::byte>(bytes).subspan(kChecksumBytes));
  if (expected != actual) return damaged_notes("the footer of the notes is damaged", offset, expected, actual);
  const std::uint64_t text_bytes = load_little_endian<std::uint32_t>(footer + 8);
  if (text_bytes > offset) {
    return Error(ErrorCode::kCorrupt, "the notes are longer than the file")
        .offset(offset)
        .expected("at most " + std::to_string(offset) + " bytes")
        .actual(std::to_string(text_bytes) + " bytes");
  }
  NotesPlace place{text_bytes + kNotesFooterBytes, offset - text_bytes, text_bytes,
                   load_little_endian<std::uint32_t>(footer + 4)};
  if (load_little_endian<std::uint32_t>(footer + 12) != kNotesVersion) place.text_bytes = 0;
  return place;
}

Result<std::string> read_notes(const ByteSource& file, const NotesPlace& place) {
  if (place.text_bytes == 0) return std::string();
  if (place.text_bytes > kNotesBytesMax) {
    return Error(ErrorCode::kCorrupt, "the notes are too long")
        .offset(place.text_offset)
        .expected("at most " + std::to_string(kNotesBytesMax) + " bytes")
        .actual(std::to_string(place.text_bytes) + " bytes");
  }
  std::string text(place.text_bytes, '\0');
  CAIRN_TRY(file.read_at(place.text_offset, std::as_writable_bytes(std::span(text))));
  const std::uint32_t actual = text_checksum_of(text);
  if (actual != place.text_checksum) {
    return damaged_notes("the notes are damaged", place.text_offset, place.text_checksum, actual);
  }
  CAIRN_TRY(read_text(text, ErrorCode::kCorrupt));
  return text;
}

}  // namespace cairn::manifest
