#include "format/manifest/outcome.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "format/manifest/varint.h"

namespace cairn::manifest {
namespace {

constexpr char kSucceeded = 'y';
constexpr char kFailed = 'n';

void append_optional(std::string& out, const std::optional<std::string>& text) {
  out.push_back(text ? 1 : 0);
  if (text) append_text(out, *text);
}

template <typename Integer>
void append_optional(std::string& out, const std::optional<Integer>& number) {
  out.push_back(number ? 1 : 0);
  if (number) append_varint(out, static_cast<std::uint64_t>(*number));
}

// Every field of `error` except the causes and the exception.
void append_error(std::string& out, const Error& error) {
  append_varint(out, static_cast<std::uint64_t>(error.code()));
  append_varint(out, static_cast<std::uint64_t>(error.error_number()));
  append_text(out, error.message());
  append_text(out, error.doing());
  append_text(out, {});  // unused: older versions put a pickled exception here, which no version reads any more
  append_optional(out, error.key());
  append_optional(out, error.file());
  append_optional(out, error.expected());
  append_optional(out, error.actual());
  append_optional(out, error.rank());
  append_optional(out, error.offset());
}

Result<std::optional<std::string_view>> read_optional_text(CodedReader& reader) {
  CAIRN_TRY_ASSIGN(const std::uint8_t present, reader.byte());
  if (present == 0) return std::optional<std::string_view>();
  CAIRN_TRY_ASSIGN(const std::string_view text, reader.counted_text());
  return std::optional(text);
}

Result<std::optional<std::uint64_t>> read_optional_number(CodedReader& reader) {
  CAIRN_TRY_ASSIGN(const std::uint8_t present, reader.byte());
  if (present == 0) return std::optional<std::uint64_t>();
  CAIRN_TRY_ASSIGN(const std::uint64_t number, reader.varint());
  return std::optional(number);
}

// Appends an error without its causes and its exception. (Result<Error> is not possible: value and error would have one
// type.)
Result<void> read_one_error(CodedReader& reader, std::vector<Error>& errors) {
  CAIRN_TRY_ASSIGN(const std::uint64_t code, reader.varint());
  if (code > static_cast<std::uint64_t>(ErrorCode::kInternal)) return reader.damaged("an error of an unknown kind");
  CAIRN_TRY_ASSIGN(const std::uint64_t error_number, reader.varint());
  CAIRN_TRY_ASSIGN(const std::string_view message, reader.counted_text());
  Error error(static_cast<ErrorCode>(code), std::string(message));
  error = std::move(error).error_number(static_cast<int>(error_number));
  CAIRN_TRY_ASSIGN(const std::string_view doing, reader.counted_text());
  if (!doing.empty()) error = std::move(error).while_doing(doing);
  CAIRN_TRY(reader.counted_text());  // unused field, of any content
  CAIRN_TRY_ASSIGN(const auto key, read_optional_text(reader));
  if (key) error = std::move(error).key(*key);
  CAIRN_TRY_ASSIGN(const auto file, read_optional_text(reader));
  if (file) error = std::move(error).file(*file);
  CAIRN_TRY_ASSIGN(const auto expected, read_optional_text(reader));
  if (expected) error = std::move(error).expected(*expected);
  CAIRN_TRY_ASSIGN(const auto actual, read_optional_text(reader));
  if (actual) error = std::move(error).actual(*actual);
  CAIRN_TRY_ASSIGN(const auto rank, read_optional_number(reader));
  if (rank) error = std::move(error).rank(static_cast<std::int64_t>(*rank));
  CAIRN_TRY_ASSIGN(const auto offset, read_optional_number(reader));
  if (offset) error = std::move(error).offset(*offset);
  errors.push_back(std::move(error));
  return {};
}

std::string encode_exception(const ExceptionRecord& record) {
  std::string out;
  append_text(out, record.class_name);
  append_text(out, record.text);
  append_varint(out, record.frames.size());
  for (const ExceptionRecord::Frame& frame : record.frames) {
    append_text(out, frame.file);
    append_varint(out, frame.line);
    append_text(out, frame.function);
    append_text(out, frame.text);
  }
  return out;
}

Result<ExceptionRecord> read_exception(CodedReader& reader) {
  ExceptionRecord record;
  CAIRN_TRY_ASSIGN(record.class_name, reader.counted_text());
  CAIRN_TRY_ASSIGN(record.text, reader.counted_text());
  CAIRN_TRY_ASSIGN(const std::uint64_t frame_count, reader.count());
  if (frame_count > kExceptionFramesMax) return reader.damaged("an exception with too many frames");
  record.frames.resize(frame_count);
  for (ExceptionRecord::Frame& frame : record.frames) {
    CAIRN_TRY_ASSIGN(frame.file, reader.counted_text());
    CAIRN_TRY_ASSIGN(frame.line, reader.varint());
    CAIRN_TRY_ASSIGN(frame.function, reader.counted_text());
    CAIRN_TRY_ASSIGN(frame.text, reader.counted_text());
  }
  return record;
}

// The exceptions of `errors`, in order: for each error a byte 0, or a byte 1 and the record.
void append_exceptions(std::string& out, std::span<const Error> errors) {
  std::size_t bytes_left = kExceptionsBytesMax;
  for (const Error& error : errors) {
    const ExceptionRecord* const record = error.exception();
    const bool fits = record != nullptr && record->frames.size() <= kExceptionFramesMax;
    const std::string coded = fits ? encode_exception(*record) : std::string();
    const bool sent = fits && coded.size() <= bytes_left;
    out.push_back(sent ? 1 : 0);
    if (!sent) continue;
    out += coded;
    bytes_left -= coded.size();
  }
}

Result<void> read_exceptions(CodedReader& reader, std::span<Error> errors) {
  if (reader.left() == 0) return {};  // an older version of Cairn wrote the outcome
  for (Error& error : errors) {
    CAIRN_TRY_ASSIGN(const std::uint8_t present, reader.byte());
    if (present == 0) continue;
    CAIRN_TRY_ASSIGN(ExceptionRecord record, read_exception(reader));
    error = std::move(error).exception(std::move(record));
  }
  return {};
}

// The identities of earlier saves that `errors` report, in order: for each error the text, empty for none. Nothing if
// no error reports an earlier save: such reports travel over the process group only, and a mark in a file never holds
// one.
void append_earlier_saves(std::string& out, std::span<const Error> errors) {
  const auto reports = [](const Error& error) { return !error.earlier_save().empty(); };
  if (std::none_of(errors.begin(), errors.end(), reports)) return;
  for (const Error& error : errors) append_text(out, error.earlier_save());
}

Result<void> read_earlier_saves(CodedReader& reader, std::span<Error> errors) {
  if (reader.left() == 0) return {};
  for (Error& error : errors) {
    CAIRN_TRY_ASSIGN(const std::string_view identity, reader.counted_text());
    if (!identity.empty()) error = std::move(error).earlier_save(identity);
  }
  return {};
}

}  // namespace

std::string encode_outcome(const Result<std::string>& outcome) {
  if (outcome) return kSucceeded + *outcome;
  std::string message(1, kFailed);
  append_error(message, outcome.error());
  const std::vector<Error>& causes = outcome.error().causes();
  append_varint(message, causes.size());
  for (const Error& cause : causes) append_error(message, cause);
  const std::span<const Error> failures = causes.empty() ? std::span(&outcome.error(), 1) : std::span(causes);
  append_exceptions(message, failures);
  append_earlier_saves(message, failures);
  return message;
}

Result<std::string> decode_outcome(std::string_view message) {
  if (message.starts_with(kSucceeded)) return std::string(message.substr(1));
  if (!message.starts_with(kFailed)) return Error(ErrorCode::kCorrupt, "a message between ranks that is none of ours");
  CodedReader reader(std::as_bytes(std::span(message.substr(1))), 0);
  std::vector<Error> errors;
  CAIRN_TRY(read_one_error(reader, errors));
  CAIRN_TRY_ASSIGN(const std::uint64_t cause_count, reader.varint());
  if (cause_count != 0) errors.clear();  // Error::of_ranks() builds the outer error from the causes
  for (std::uint64_t i = 0; i < cause_count; ++i) CAIRN_TRY(read_one_error(reader, errors));
  CAIRN_TRY(read_exceptions(reader, errors));
  CAIRN_TRY(read_earlier_saves(reader, errors));
  if (cause_count == 0) return errors.front();
  return Error::of_ranks(std::move(errors));
}

}  // namespace cairn::manifest
