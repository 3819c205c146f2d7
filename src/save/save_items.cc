#include "save/save_items.h"

#include <utility>

#include "core/host_tensors.h"
#include "format/torch_file/value_archive.h"

namespace cairn::checkpointer {
namespace {

using data_file::ItemSource;
using manifest::TrailerItem;

// Pads a value's archive to a size class: a value that grows slowly then does not move the items after the value at
// every save.
std::string padded(std::string archive) {
  const std::uint64_t length = torch_file::padded_length(archive.size());
  std::string unpadded = archive;
  Result<std::string> result = torch_file::pad_archive(std::move(archive), length);
  return result ? std::move(*result) : std::move(unpadded);  // not a zip archive: stored without padding
}

}  // namespace

Result<ItemSource> SaveItems::item_of(const Entry& entry) {
  ItemSource item;
  item.entry = &entry;
  if (const auto* tensor = std::get_if<TensorEntry>(&entry.content)) {
    item.tensor = tensor;
    return item;
  }
  if (const auto* tensor = std::get_if<SerializedTensor>(&entry.content)) {
    item.kind = TrailerItem::Kind::kSerializedTensor;
    item.bytes = tensor->payload;
    return item;
  }
  item.kind = TrailerItem::Kind::kValue;
  if (const auto* value = std::get_if<Value>(&entry.content)) {
    CAIRN_TRY_ASSIGN(std::string archive, torch_file::encode_value(*value));
    item.bytes = archives_.emplace_back(padded(std::move(archive)));
  } else {
    item.bytes = archives_.emplace_back(padded(std::get<SerializedValue>(entry.content).payload));
  }
  return item;
}

Result<SaveItems> SaveItems::make(std::span<const Entry> entries, ReadableMemory readable) {
  if (readable == ReadableMemory::kOfCpu) CAIRN_TRY(expect_host_tensors(entries));
  SaveItems items;
  items.sources_.reserve(entries.size());
  for (const Entry& entry : entries) {
    Result<ItemSource> item = items.item_of(entry);
    if (!item) return std::move(item).error().key(entry.fqn);
    items.sources_.push_back(*item);
  }
  return items;
}

Result<ItemSource> SaveItems::part_of(const ItemSource& source, const Box& part) {
  const auto refuse = [&] {
    return Error(ErrorCode::kCorrupt, "the assigned part is outside this rank's chunk")
        .key(source.entry->fqn)
        .actual(to_string(part));
  };
  if (source.tensor == nullptr) return refuse();
  const TensorEntry& whole = *source.tensor;
  const auto common = intersection(whole.box, part);
  if (!common || !(*common == part)) return refuse();
  TensorEntry entry = whole;
  entry.box = part;
  entry.local.sizes = part.sizes();
  std::int64_t first = 0;
  for (std::size_t i = 0; i < part.dimensions(); ++i) {
    first += (part.offsets()[i] - whole.box.offsets()[i]) * whole.local.strides[i];
  }
  entry.local.data =
      static_cast<std::byte*>(whole.local.data) + first * static_cast<std::int64_t>(item_bytes(whole.local.dtype));
  ItemSource item = source;
  item.tensor = &parts_.emplace_back(std::move(entry));
  return item;
}

std::vector<AssignedItem> SaveItems::all() const {
  std::vector<AssignedItem> items(sources_.size());
  for (std::size_t i = 0; i < items.size(); ++i) items[i].index = static_cast<std::uint32_t>(i);
  return items;
}

Result<std::vector<ItemSource>> SaveItems::take(std::span<const AssignedItem> assigned) {
  std::vector<ItemSource> taken;
  taken.reserve(assigned.size());
  for (const AssignedItem& item : assigned) {
    if (item.index >= sources_.size()) return Error(ErrorCode::kCorrupt, "this rank lacks the assigned item");
    if (!item.part) {
      taken.push_back(sources_[item.index]);
      continue;
    }
    CAIRN_TRY_ASSIGN(const ItemSource part, part_of(sources_[item.index], *item.part));
    taken.push_back(part);
  }
  return taken;
}

}  // namespace cairn::checkpointer
