#include "checkpointer/save_messages.h"

#include <cairn/version.h>

#include <utility>

#include "format/manifest/index_coding.h"

namespace cairn::checkpointer {
namespace {

using manifest::append_text;
using manifest::append_varint;
using manifest::CodedReader;
using manifest::TrailerItem;

Result<AssignedItem> read_assigned(CodedReader& reader) {
  AssignedItem item;
  CAIRN_TRY_ASSIGN(const std::uint64_t index, reader.varint());
  if (index > UINT32_MAX) return reader.damaged("an item beyond 2^32");
  item.index = static_cast<std::uint32_t>(index);
  CAIRN_TRY_ASSIGN(const std::uint64_t coded, reader.varint());  // 0: whole, else dimensions + 1
  if (coded == 0) return item;
  if (coded > kDimensionsMax + 1) return reader.damaged("too many dimensions");
  CAIRN_TRY_ASSIGN(Extents offsets, manifest::read_extents(reader, coded - 1));
  CAIRN_TRY_ASSIGN(Extents sizes, manifest::read_extents(reader, coded - 1));
  CAIRN_TRY_ASSIGN(item.part, Box::make(std::move(offsets), std::move(sizes)));
  return item;
}

}  // namespace

Result<std::string> encode_local_plan(std::span<const data_file::ItemSource> items, const LocalPlanOptions& options) {
  std::string message;
  append_text(message, kVersion);
  message.push_back(options.file_per_item ? 1 : 0);
  message.push_back(options.names_taken ? 1 : 0);
  append_varint(message, items.size());
  TrailerItem item;
  for (const data_file::ItemSource& source : items) {
    if (auto described = data_file::describe(source, item); !described) {
      return std::move(described).error().key(source.entry->fqn);
    }
    if (!options.record_paths) item.path.clear();
    const std::uint64_t bytes = source.tensor != nullptr
                                    ? static_cast<std::uint64_t>(item.box.element_count()) *
                                          item_bytes(item.dtype)  // no overflow: checked by StateDict
                                    : source.bytes.size();
    item.range = {0, bytes, 0, bytes};
    message.push_back(source.tensor != nullptr && source.tensor->traits.replicated ? 1 : 0);
    manifest::append_item(message, item, 0);
  }
  return message;
}

Result<plan::LocalItem> LocalPlans::read_item(CodedReader& reader) {
  CAIRN_TRY_ASSIGN(const std::uint8_t replicated, reader.byte());
  TrailerItem item;
  CAIRN_TRY(manifest::read_item(reader, 0, item));
  const auto key = keys_.try_emplace(std::move(item.fqn), std::move(item.path)).first;
  plan::LocalItem local;
  local.fqn = key->first;
  switch (item.kind) {
    case TrailerItem::Kind::kTensor: local.kind = plan::LocalItem::Kind::kTensor; break;
    case TrailerItem::Kind::kSerializedTensor: local.kind = plan::LocalItem::Kind::kSerializedTensor; break;
    case TrailerItem::Kind::kValue: local.kind = plan::LocalItem::Kind::kValue; break;
  }
  local.dtype = item.dtype;
  local.requires_grad = item.requires_grad;
  local.replicated = replicated != 0;
  local.bytes = item.range.payload_length;
  local.shape = std::move(item.global_shape);
  local.box = std::move(item.box);
  return local;
}

Result<void> LocalPlans::add(std::string_view message) {
  CodedReader reader(message);
  CAIRN_TRY_ASSIGN(const std::string_view version, reader.counted_text());
  if (version != kVersion) {
    return Error(ErrorCode::kUnsupported, "the ranks of the save run different versions of Cairn")
        .rank(static_cast<std::int64_t>(plans_.size()))
        .expected(kVersion)
        .actual(version);
  }
  CAIRN_TRY_ASSIGN(const std::uint8_t file_per_item, reader.byte());
  CAIRN_TRY_ASSIGN(const std::uint8_t names_taken, reader.byte());
  names_taken_ |= names_taken != 0;
  CAIRN_TRY_ASSIGN(const std::uint64_t count, reader.count());
  plan::LocalPlan plan;
  plan.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    CAIRN_TRY_ASSIGN(plan::LocalItem item, read_item(reader));
    plan.push_back(std::move(item));
  }
  plans_.push_back(std::move(plan));
  file_per_item_.push_back(file_per_item != 0);
  return {};
}

std::string encode_assignment(const SaveAssignment& assignment) {
  std::string message = commit::encode_ticket(assignment.ticket);
  append_varint(message, assignment.file_count);
  append_varint(message, assignment.items.size());
  for (const AssignedItem& item : assignment.items) {
    append_varint(message, item.index);
    append_varint(message, item.part ? item.part->dimensions() + 1 : 0);
    if (!item.part) continue;
    manifest::append_extents(message, item.part->offsets());
    manifest::append_extents(message, item.part->sizes());
  }
  append_varint(message, assignment.files.size());
  for (const AssignedFile& file : assignment.files) {
    append_text(message, file.name);
    append_varint(message, file.item_count);
  }
  return message;
}

Result<SaveAssignment> decode_assignment(std::string_view message) {
  CodedReader reader(message);
  SaveAssignment assignment;
  CAIRN_TRY_ASSIGN(assignment.ticket, commit::read_ticket(reader));
  CAIRN_TRY_ASSIGN(const std::uint64_t file_count, reader.varint());
  if (file_count > UINT32_MAX) return reader.damaged("more files than 2^32");
  assignment.file_count = static_cast<std::uint32_t>(file_count);
  CAIRN_TRY_ASSIGN(const std::uint64_t count, reader.count());
  assignment.items.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    CAIRN_TRY_ASSIGN(AssignedItem item, read_assigned(reader));
    assignment.items.push_back(std::move(item));
  }
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
