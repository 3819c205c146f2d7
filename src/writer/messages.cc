#include "writer/messages.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "format/manifest/index_coding.h"
#include "format/manifest/outcome.h"
#include "format/manifest/varint.h"

namespace cairn::writer {
namespace {

using manifest::append_text;
using manifest::append_varint;
using manifest::CodedReader;

constexpr std::int64_t kMillisecondsMax = std::numeric_limits<std::int32_t>::max();  // 24 days: practically unlimited
constexpr std::uint64_t kThreadsMax = 1024;
constexpr int kNiceMax = 40;
constexpr mode_t kUmaskMax = 0777;
constexpr std::uint8_t kIoLevelMax = 7;
constexpr std::uint64_t kNanosecondsMax = std::numeric_limits<std::int64_t>::max();

Result<void> expect_end(const CodedReader& reader) {
  if (reader.left() != 0) return reader.damaged("more bytes than the message has");
  return {};
}

Result<std::uint64_t> read_at_most(CodedReader& reader, std::uint64_t max, const char* what) {
  CAIRN_TRY_ASSIGN(const std::uint64_t number, reader.varint());
  if (number > max) return reader.damaged(what);
  return number;
}

Result<std::uint32_t> read_u32(CodedReader& reader) {
  CAIRN_TRY_ASSIGN(const std::uint64_t number, read_at_most(reader, UINT32_MAX, "a number beyond 2^32"));
  return static_cast<std::uint32_t>(number);
}

void append_flag(std::string& out, bool flag) { out.push_back(flag ? 1 : 0); }

Result<bool> read_flag(CodedReader& reader) {
  CAIRN_TRY_ASSIGN(const std::uint8_t byte, reader.byte());
  if (byte > 1) return reader.damaged("a flag that is neither 0 nor 1");
  return byte == 1;
}

void append_milliseconds(std::string& out, std::chrono::milliseconds time) {
  append_varint(out, static_cast<std::uint64_t>(std::clamp<std::int64_t>(time.count(), 0, kMillisecondsMax)));
}

Result<std::chrono::milliseconds> read_milliseconds(CodedReader& reader) {
  CAIRN_TRY_ASSIGN(const std::uint64_t count, read_at_most(reader, kMillisecondsMax, "too long a time"));
  return std::chrono::milliseconds(count);
}

void append_nanoseconds(std::string& out, std::chrono::nanoseconds time) {
  append_varint(out, static_cast<std::uint64_t>(std::max<std::int64_t>(time.count(), 0)));
}

Result<std::chrono::nanoseconds> read_nanoseconds(CodedReader& reader) {
  CAIRN_TRY_ASSIGN(const std::uint64_t count, read_at_most(reader, kNanosecondsMax, "too long a time"));
  return std::chrono::nanoseconds(count);
}

void append_plain_file(std::string& out, const data_file::PlainFile& file) {
  append_flag(out, file.form == data_file::PlainFile::Form::kTorchSave);
  append_varint(out, file.payload_bytes.size());
  for (const std::uint64_t bytes : file.payload_bytes) append_varint(out, bytes);
}

Result<data_file::PlainFile> read_plain_file(CodedReader& reader) {
  data_file::PlainFile file;
  CAIRN_TRY_ASSIGN(const bool is_of_torch_save, read_flag(reader));
  file.form = is_of_torch_save ? data_file::PlainFile::Form::kTorchSave : data_file::PlainFile::Form::kBytes;
  CAIRN_TRY_ASSIGN(const std::uint64_t count, reader.count());
  for (std::uint64_t i = 0; i < count; ++i) {
    CAIRN_TRY_ASSIGN(const std::uint64_t bytes, reader.varint());
    file.payload_bytes.push_back(bytes);
  }
  return file;
}

Result<void> read_staged_file(CodedReader& reader, StagedLayout::File& file) {
  CAIRN_TRY_ASSIGN(file.arena_offset, reader.varint());
  CAIRN_TRY_ASSIGN(const bool is_plain, read_flag(reader));
  if (is_plain) {
    CAIRN_TRY_ASSIGN(file.plain, read_plain_file(reader));
    return {};
  }
  CAIRN_TRY_ASSIGN(file.index.rank, read_u32(reader));
  CAIRN_TRY_ASSIGN(file.index.file_number, read_u32(reader));
  CAIRN_TRY_ASSIGN(file.index.file_count, read_u32(reader));
  CAIRN_TRY_ASSIGN(const std::uint64_t item_count, reader.count());
  std::uint64_t end = 0;
  for (std::uint64_t number = 0; number < item_count; ++number) {
    manifest::TrailerItem& item = file.index.items.emplace_back();
    CAIRN_TRY(manifest::read_item(reader, end, item));
    end = item.range.item_offset + item.range.item_length;  // read_item() has checked the sum
  }
  return {};
}

Result<std::vector<std::vector<StagedLayout::NamedFile>>> read_directory_files(CodedReader& reader) {
  std::vector<std::vector<StagedLayout::NamedFile>> files;
  CAIRN_TRY_ASSIGN(const std::uint64_t ranks, reader.count());
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    std::vector<StagedLayout::NamedFile>& of_rank = files.emplace_back();
    CAIRN_TRY_ASSIGN(const std::uint64_t count, reader.count());
    for (std::uint64_t i = 0; i < count; ++i) {
      CAIRN_TRY_ASSIGN(const std::string_view name, reader.counted_text());
      CAIRN_TRY_ASSIGN(const std::uint64_t bytes, reader.varint());
      of_rank.push_back({std::string(name), bytes});
    }
  }
  return files;
}

void append_deadlines(std::string& out, const SaveDeadlines& deadlines) {
  append_milliseconds(out, deadlines.progress);
  append_milliseconds(out, deadlines.sync);
  append_milliseconds(out, deadlines.publish);
}

Result<SaveDeadlines> read_deadlines(CodedReader& reader) {
  SaveDeadlines deadlines;
  CAIRN_TRY_ASSIGN(deadlines.progress, read_milliseconds(reader));
  CAIRN_TRY_ASSIGN(deadlines.sync, read_milliseconds(reader));
  CAIRN_TRY_ASSIGN(deadlines.publish, read_milliseconds(reader));
  return deadlines;
}

void append_report(std::string& out, const commit::ProgressReport& report) {
  out.push_back(static_cast<char>(report.phase));
  append_varint(out, report.bytes_written);
  append_varint(out, report.bytes_total);
  append_flag(out, report.pending.has_value());
  if (!report.pending) return;
  out.push_back(static_cast<char>(report.pending->kind));
  append_milliseconds(out, report.pending->age);
  append_text(out, report.pending->what);
}

Result<commit::ProgressReport> read_report(CodedReader& reader) {
  commit::ProgressReport report;
  CAIRN_TRY_ASSIGN(const std::uint8_t phase, reader.byte());
  if (phase > static_cast<std::uint8_t>(SavePhase::kEnded)) {
    return reader.damaged("a save in an unknown phase");
  }
  report.phase = static_cast<SavePhase>(phase);
  CAIRN_TRY_ASSIGN(report.bytes_written, reader.varint());
  CAIRN_TRY_ASSIGN(report.bytes_total, reader.varint());
  CAIRN_TRY_ASSIGN(const bool is_pending, read_flag(reader));
  if (!is_pending) return report;
  storage::PendingOperation& pending = report.pending.emplace();
  CAIRN_TRY_ASSIGN(const std::uint8_t kind, reader.byte());
  if (kind > static_cast<std::uint8_t>(storage::OperationKind::kHeartbeat)) {
    return reader.damaged("a call of an unknown kind");
  }
  pending.kind = static_cast<storage::OperationKind>(kind);
  CAIRN_TRY_ASSIGN(pending.age, read_milliseconds(reader));
  CAIRN_TRY_ASSIGN(pending.what, reader.counted_text());
  return report;
}

Result<commit::RankPlace> read_place(CodedReader& reader) {
  commit::RankPlace place;
  CAIRN_TRY_ASSIGN(place.rank, read_u32(reader));
  CAIRN_TRY_ASSIGN(place.count, read_u32(reader));
  CAIRN_TRY_ASSIGN(place.coordinator, read_u32(reader));
  if (place.count == 0) return reader.damaged("a save of no ranks");
  // A rank that saves alone may have any number.
  if (place.count > 1 && (place.rank >= place.count || place.coordinator >= place.count)) {
    return reader.damaged("a rank beyond those that save together");
  }
  return place;
}

Result<mode_t> read_umask(CodedReader& reader) {
  CAIRN_TRY_ASSIGN(const std::uint64_t umask, read_at_most(reader, kUmaskMax, "a umask beyond 0777"));
  return static_cast<mode_t>(umask);
}

// How the request's files are to be written.
Result<void> read_manner(CodedReader& reader, SaveRequest& request) {
  CAIRN_TRY_ASSIGN(const bool durable, read_flag(reader));
  request.durability = durable ? Durability::kDurable : Durability::kBuffered;
  CAIRN_TRY_ASSIGN(request.thread_count, read_at_most(reader, kThreadsMax, "too many threads"));
  if (request.thread_count == 0) return reader.damaged("a save of no threads");
  CAIRN_TRY_ASSIGN(request.direct_io, read_flag(reader));
  CAIRN_TRY_ASSIGN(request.trainer_waits, read_flag(reader));
  CAIRN_TRY_ASSIGN(request.deadlines, read_deadlines(reader));
  CAIRN_TRY_ASSIGN(request.umask, read_umask(reader));
  return {};
}

}  // namespace

std::string encode(const HelloMessage& message) {
  std::string out;
  append_varint(out, message.protocol_version);
  append_text(out, message.cairn_version);
  append_varint(out, static_cast<std::uint64_t>(message.trainer));
  append_milliseconds(out, message.grace);
  append_varint(out, static_cast<std::uint64_t>(std::clamp(message.priority.nice, 0, kNiceMax)));
  out.push_back(static_cast<char>(message.priority.io_class));
  out.push_back(static_cast<char>(std::min(message.priority.io_level, kIoLevelMax)));
  return out;
}

Result<HelloMessage> decode_hello(std::string_view bytes) {
  CodedReader reader(bytes);
  HelloMessage message;
  CAIRN_TRY_ASSIGN(message.protocol_version, reader.varint());
  CAIRN_TRY_ASSIGN(message.cairn_version, reader.counted_text());
  // The remaining fields belong to the sender's protocol version. The answer to another version reports the mismatch,
  // and needs no other fields.
  if (message.protocol_version != kProtocolVersion) return message;
  CAIRN_TRY_ASSIGN(const std::uint64_t trainer, read_at_most(reader, INT32_MAX, "a process id beyond 2^31"));
  message.trainer = static_cast<std::int64_t>(trainer);
  CAIRN_TRY_ASSIGN(message.grace, read_milliseconds(reader));
  CAIRN_TRY_ASSIGN(const std::uint64_t nice, read_at_most(reader, kNiceMax, "too large a niceness"));
  message.priority.nice = static_cast<int>(nice);
  CAIRN_TRY_ASSIGN(const std::uint8_t io_class, reader.byte());
  CAIRN_TRY_ASSIGN(message.priority.io_level, reader.byte());
  if (io_class > static_cast<std::uint8_t>(os::IoClass::kIdle) || message.priority.io_level > kIoLevelMax) {
    return reader.damaged("an unknown I/O priority");
  }
  message.priority.io_class = static_cast<os::IoClass>(io_class);
  CAIRN_TRY(expect_end(reader));
  return message;
}

std::string encode_number(std::uint64_t number) {
  std::string out;
  append_varint(out, number);
  return out;
}

Result<std::uint64_t> decode_number(std::string_view bytes) {
  CodedReader reader(bytes);
  CAIRN_TRY_ASSIGN(const std::uint64_t number, reader.varint());
  CAIRN_TRY(expect_end(reader));
  return number;
}

std::string encode(const StartMessage& message) {
  std::string out = encode_number(message.save);
  append_flag(out, message.reports_written);
  return out;
}

Result<StartMessage> decode_start(std::string_view bytes) {
  CodedReader reader(bytes);
  StartMessage message;
  CAIRN_TRY_ASSIGN(message.save, reader.varint());
  CAIRN_TRY_ASSIGN(message.reports_written, read_flag(reader));
  CAIRN_TRY(expect_end(reader));
  return message;
}

Result<std::string> encode_layout(std::uint64_t slot, const StagedLayout& layout) {
  std::string out;
  append_varint(out, slot);
  append_varint(out, layout.id);
  append_varint(out, layout.arena_bytes);
  append_varint(out, layout.files.size());
  for (const StagedLayout::File& file : layout.files) {
    append_varint(out, file.arena_offset);
    append_flag(out, file.plain.has_value());
    if (file.plain) {
      append_plain_file(out, *file.plain);
      continue;
    }
    append_varint(out, file.index.rank);
    append_varint(out, file.index.file_number);
    append_varint(out, file.index.file_count);
    append_varint(out, file.index.items.size());
    std::uint64_t end = 0;
    for (const manifest::TrailerItem& item : file.index.items) {
      if (item.range.item_offset < end) {
        return Error(ErrorCode::kInvalidArgument, "items of a file that are out of order").key(item.fqn);
      }
      manifest::append_item(out, item, end);
      end = item.range.item_offset + item.range.item_length;
    }
  }
  append_flag(out, layout.commit_plan != nullptr);
  if (layout.commit_plan) layout.commit_plan->append_to(out);
  append_flag(out, layout.directory_files.has_value());
  if (!layout.directory_files) return out;
  append_varint(out, layout.directory_files->size());
  for (const std::vector<StagedLayout::NamedFile>& files : *layout.directory_files) {
    append_varint(out, files.size());
    for (const StagedLayout::NamedFile& file : files) {
      append_text(out, file.name);
      append_varint(out, file.bytes);
    }
  }
  return out;
}

Result<LayoutMessage> decode_layout(std::string_view bytes) {
  CodedReader reader(bytes);
  LayoutMessage message;
  CAIRN_TRY_ASSIGN(message.slot, read_at_most(reader, kLayoutSlots - 1, "a layout beyond the last slot"));
  CAIRN_TRY_ASSIGN(message.layout.id, reader.varint());
  CAIRN_TRY_ASSIGN(message.layout.arena_bytes, reader.varint());
  CAIRN_TRY_ASSIGN(const std::uint64_t file_count, reader.count());
  for (std::uint64_t i = 0; i < file_count; ++i) {
    CAIRN_TRY(read_staged_file(reader, message.layout.files.emplace_back()));
  }
  CAIRN_TRY_ASSIGN(const bool commits, read_flag(reader));
  if (commits) {
    CAIRN_TRY_ASSIGN(commit::CommitPlan commit, commit::CommitPlan::read(reader));
    message.layout.commit_plan = std::make_shared<const commit::CommitPlan>(std::move(commit));
  }
  CAIRN_TRY_ASSIGN(const bool is_of_directory, read_flag(reader));
  if (is_of_directory) {
    CAIRN_TRY_ASSIGN(message.layout.directory_files, read_directory_files(reader));
  }
  CAIRN_TRY(expect_end(reader));
  return message;
}

std::string encode(const ClaimMessage& message) {
  std::string out;
  append_varint(out, message.save);
  append_text(out, message.request.directory);
  commit::append_identity(out, message.request.identity);
  append_varint(out, message.request.rank);
  const commit::ClaimOptions& options = message.request.options;
  append_flag(out, options.overwrite);
  append_flag(out, options.overwrite_pinned);
  append_flag(out, options.single_writer);
  append_flag(out, options.names_taken);
  append_varint(out, options.alone_as_rank ? std::uint64_t{*options.alone_as_rank} + 1 : 0);
  append_deadlines(out, message.request.deadlines);
  append_varint(out, message.request.umask & kUmaskMax);
  return out;
}

Result<ClaimMessage> decode_claim(std::string_view bytes) {
  CodedReader reader(bytes);
  ClaimMessage message;
  CAIRN_TRY_ASSIGN(message.save, reader.varint());
  CAIRN_TRY_ASSIGN(message.request.directory, reader.counted_text());
  CAIRN_TRY_ASSIGN(message.request.identity, commit::read_identity(reader));
  CAIRN_TRY_ASSIGN(message.request.rank, read_u32(reader));
  commit::ClaimOptions& options = message.request.options;
  CAIRN_TRY_ASSIGN(options.overwrite, read_flag(reader));
  CAIRN_TRY_ASSIGN(options.overwrite_pinned, read_flag(reader));
  CAIRN_TRY_ASSIGN(options.single_writer, read_flag(reader));
  CAIRN_TRY_ASSIGN(options.names_taken, read_flag(reader));
  constexpr std::uint64_t kRanksMax = std::uint64_t{UINT32_MAX} + 1;
  CAIRN_TRY_ASSIGN(const std::uint64_t alone, read_at_most(reader, kRanksMax, "a rank beyond 2^32"));
  if (alone != 0) options.alone_as_rank = static_cast<std::uint32_t>(alone - 1);
  CAIRN_TRY_ASSIGN(message.request.deadlines, read_deadlines(reader));
  CAIRN_TRY_ASSIGN(message.request.umask, read_umask(reader));
  CAIRN_TRY(expect_end(reader));
  return message;
}

std::string encode(const BeginMessage& message) {
  std::string out;
  const SaveRequest& request = message.request;
  append_varint(out, message.save);
  append_text(out, request.directory);
  commit::append_ticket(out, request.ticket);
  append_varint(out, request.place.rank);
  append_varint(out, request.place.count);
  append_varint(out, request.place.coordinator);
  append_varint(out, message.arena);
  append_varint(out, message.layout_slot);
  append_varint(out, request.names.size());
  for (const std::string& name : request.names) append_text(out, name);
  append_flag(out, request.durability == Durability::kDurable);
  append_varint(out, std::clamp<std::uint64_t>(request.thread_count, 1, kThreadsMax));
  append_flag(out, request.direct_io);
  append_flag(out, request.trainer_waits);
  append_deadlines(out, request.deadlines);
  append_varint(out, request.umask & kUmaskMax);
  append_text(out, request.checkpoint_id);
  append_text(out, request.notes);
  return out;
}

Result<BeginMessage> decode_begin(std::string_view bytes) {
  CodedReader reader(bytes);
  BeginMessage message;
  SaveRequest& request = message.request;
  CAIRN_TRY_ASSIGN(message.save, reader.varint());
  CAIRN_TRY_ASSIGN(request.directory, reader.counted_text());
  CAIRN_TRY_ASSIGN(request.ticket, commit::read_ticket(reader));
  CAIRN_TRY_ASSIGN(request.place, read_place(reader));
  CAIRN_TRY_ASSIGN(message.arena, reader.varint());
  CAIRN_TRY_ASSIGN(message.layout_slot, read_at_most(reader, kLayoutSlots - 1, "a layout beyond the last slot"));
  CAIRN_TRY_ASSIGN(request.names, reader.counted_texts());
  CAIRN_TRY(read_manner(reader, request));
  CAIRN_TRY_ASSIGN(request.checkpoint_id, reader.counted_text());
  CAIRN_TRY_ASSIGN(request.notes, reader.counted_text());
  CAIRN_TRY(expect_end(reader));
  return message;
}

std::string encode(const OutcomeMessage& message) {
  return encode_number(message.save) + manifest::encode_outcome(message.outcome);
}

Result<OutcomeMessage> decode_outcome_message(std::string_view bytes) {
  CodedReader reader(bytes);
  OutcomeMessage message;
  CAIRN_TRY_ASSIGN(message.save, reader.varint());
  bytes.remove_prefix(reader.position());
  message.outcome = manifest::decode_outcome(bytes);
  // `outcome` is either the decoded error of the message, or the error of the decoding itself. Only the decoded error
  // encodes to the message's bytes again.
  if (!message.outcome && manifest::encode_outcome(message.outcome) != bytes) {
    return Error(ErrorCode::kCorrupt, "an outcome that can't be read").actual(message.outcome.error().what());
  }
  return message;
}

std::string encode_report(const commit::RankSaveReport& report) {
  std::string out;
  append_varint(out, report.bytes_written);
  manifest::append_texts(out, report.warnings);
  return out;
}

Result<commit::RankSaveReport> decode_report(std::string_view bytes) {
  CodedReader reader(bytes);
  commit::RankSaveReport report;
  CAIRN_TRY_ASSIGN(report.bytes_written, reader.varint());
  CAIRN_TRY_ASSIGN(report.warnings, reader.counted_texts());
  CAIRN_TRY(expect_end(reader));
  return report;
}

std::string encode(const WrittenMessage& message) {
  std::string out;
  append_varint(out, message.save);
  append_varint(out, message.bytes);
  append_nanoseconds(out, message.time.started.time_since_epoch());
  append_nanoseconds(out, message.time.duration);
  return out;
}

Result<WrittenMessage> decode_written_message(std::string_view bytes) {
  CodedReader reader(bytes);
  WrittenMessage message;
  CAIRN_TRY_ASSIGN(message.save, reader.varint());
  CAIRN_TRY_ASSIGN(message.bytes, reader.varint());
  CAIRN_TRY_ASSIGN(const std::chrono::nanoseconds started, read_nanoseconds(reader));
  message.time.started += std::chrono::duration_cast<std::chrono::system_clock::duration>(started);
  CAIRN_TRY_ASSIGN(message.time.duration, read_nanoseconds(reader));
  CAIRN_TRY(expect_end(reader));
  return message;
}

std::string encode(const ProgressMessage& message) {
  std::string out;
  append_varint(out, message.saves.size());
  for (const auto& [save, report] : message.saves) {
    append_varint(out, save);
    append_report(out, report);
  }
  return out;
}

Result<ProgressMessage> decode_progress(std::string_view bytes) {
  CodedReader reader(bytes);
  ProgressMessage message;
  CAIRN_TRY_ASSIGN(const std::uint64_t count, reader.count());
  for (std::uint64_t i = 0; i < count; ++i) {
    auto& [save, report] = message.saves.emplace_back();
    CAIRN_TRY_ASSIGN(save, reader.varint());
    CAIRN_TRY_ASSIGN(report, read_report(reader));
  }
  CAIRN_TRY(expect_end(reader));
  return message;
}

}  // namespace cairn::writer
