#include "save/save_messages.h"

#include <utility>

#include "format/manifest/varint.h"

namespace cairn::checkpointer {
namespace {

using manifest::append_text;
using manifest::append_varint;
using manifest::CodedReader;

Result<std::vector<save_plan::CommonItem>> read_watched(CodedReader& reader) {
  CAIRN_TRY_ASSIGN(const std::uint64_t count, reader.count());
  std::vector<save_plan::CommonItem> watched;
  watched.reserve(count);
  std::uint64_t index = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    CAIRN_TRY_ASSIGN(const std::uint64_t distance, reader.varint());
    if (distance > UINT32_MAX - index) return reader.damaged("an item beyond 2^32");
    index += distance;
    CAIRN_TRY_ASSIGN(const std::uint64_t set, reader.varint());
    if (set >= save_plan::kRankSetsMax) return reader.damaged("an unknown set of ranks");
    watched.push_back({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(set)});
  }
  return watched;
}

}  // namespace

std::string encode_assignment(const SaveAssignment& assignment) {
  std::string message = commit::encode_ticket(assignment.ticket);
  append_varint(message, assignment.plan_id);
  append_varint(message, assignment.file_count);
  append_varint(message, assignment.adds_own_items ? 1 : 0);
  save_plan::append_assigned_items(message, assignment.items);
  append_varint(message, assignment.files.size());
  for (const AssignedFile& file : assignment.files) {
    append_text(message, file.name);
    append_varint(message, file.item_count);
  }
  append_varint(message, assignment.watched.size());
  std::uint32_t before = 0;
  for (const save_plan::CommonItem& item : assignment.watched) {
    append_varint(message, item.index - std::exchange(before, item.index));
    append_varint(message, item.set);
  }
  return message;
}

Result<SaveAssignment> decode_assignment(std::string_view message) {
  CodedReader reader(message);
  SaveAssignment assignment;
  CAIRN_TRY_ASSIGN(assignment.ticket, commit::read_ticket(reader));
  CAIRN_TRY_ASSIGN(assignment.plan_id, reader.varint());
  CAIRN_TRY_ASSIGN(const std::uint64_t file_count, reader.varint());
  if (file_count > UINT32_MAX) return reader.damaged("more files than 2^32");
  assignment.file_count = static_cast<std::uint32_t>(file_count);
  CAIRN_TRY_ASSIGN(const std::uint64_t adds_own_items, reader.varint());
  if (adds_own_items > 1) return reader.damaged("neither a whole list nor a list of common items");
  assignment.adds_own_items = adds_own_items == 1;
  CAIRN_TRY_ASSIGN(assignment.items, save_plan::read_assigned_items(reader));
  const std::uint64_t count = assignment.items.size();
  CAIRN_TRY_ASSIGN(const std::uint64_t files, reader.count());
  std::uint64_t placed = 0;
  for (std::uint64_t i = 0; i < files; ++i) {
    CAIRN_TRY_ASSIGN(const std::string_view name, reader.counted_text());
    CAIRN_TRY_ASSIGN(const std::uint64_t items, reader.varint());
    if (items > count - placed) return reader.damaged("files with more items than the assignment");
    placed += items;
    assignment.files.push_back({std::string(name), static_cast<std::uint32_t>(items)});
  }
  if (files != 0 && placed != count) return reader.damaged("items without a file");
  CAIRN_TRY_ASSIGN(assignment.watched, read_watched(reader));
  return assignment;
}

std::string encode_written(std::span<const WrittenFile> files) {
  std::string message;
  append_varint(message, files.size());
  for (const WrittenFile& file : files) {
    append_varint(message, file.size);
    append_varint(message, file.trailer_checksum);
  }
  return message;
}

Result<std::vector<WrittenFile>> decode_written(std::string_view message) {
  CodedReader reader(message);
  CAIRN_TRY_ASSIGN(const std::uint64_t count, reader.count());
  std::vector<WrittenFile> files;
  for (std::uint64_t i = 0; i < count; ++i) {
    WrittenFile& file = files.emplace_back();
    CAIRN_TRY_ASSIGN(file.size, reader.varint());
    CAIRN_TRY_ASSIGN(const std::uint64_t checksum, reader.varint());
    if (checksum > UINT32_MAX) return reader.damaged("a checksum of more than 32 bits");
    file.trailer_checksum = static_cast<std::uint32_t>(checksum);
  }
  return files;
}

std::string encode_committed(const Committed& committed) {
  std::string message;
  manifest::append_texts(message, committed.warnings);
  append_text(message, committed.pickle);
  return message;
}

Result<Committed> decode_committed(std::string_view message) {
  CodedReader reader(message);
  Committed committed;
  CAIRN_TRY_ASSIGN(committed.warnings, reader.counted_texts());
  CAIRN_TRY_ASSIGN(const std::string_view pickle, reader.counted_text());
  committed.pickle.assign(pickle);
  return committed;
}

std::string encode_decision(const DecisionMessage& decision) {
  std::string message(1, decision.files_stay ? 1 : 0);
  return message += decision.outcome;
}

Result<DecisionMessage> decode_decision(std::string_view message) {
  if (message.empty()) return Error(ErrorCode::kCorrupt, "an empty decision message");
  return DecisionMessage{std::string(message.substr(1)), message.front() != 0};
}

}  // namespace cairn::checkpointer
