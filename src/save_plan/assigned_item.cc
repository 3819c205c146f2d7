// The number of items; then for each its index, and 0 for a whole item, or the number of dimensions plus 1, the offsets
// and the sizes of the part. All numbers are varints.
#include "save_plan/assigned_item.h"

#include <utility>

#include "format/manifest/index_coding.h"

namespace cairn::save_plan {
namespace {

using manifest::append_varint;
using manifest::CodedReader;

Result<AssignedItem> read_assigned(CodedReader& reader) {
  AssignedItem item;
  CAIRN_TRY_ASSIGN(const std::uint64_t index, reader.varint());
  if (index > UINT32_MAX) return reader.damaged("an item beyond 2^32");
  item.index = static_cast<std::uint32_t>(index);
  CAIRN_TRY_ASSIGN(const std::uint64_t coded, reader.varint());
  if (coded == 0) return item;
  if (coded > kDimensionsMax + 1) return reader.damaged("too many dimensions");
  CAIRN_TRY_ASSIGN(Extents offsets, manifest::read_extents(reader, coded - 1));
  CAIRN_TRY_ASSIGN(Extents sizes, manifest::read_extents(reader, coded - 1));
  CAIRN_TRY_ASSIGN(Box part, Box::make(std::move(offsets), std::move(sizes)));
  item.part = std::make_shared<const Box>(std::move(part));
  return item;
}

}  // namespace

void append_assigned_items(std::string& message, std::span<const AssignedItem> items) {
  append_varint(message, items.size());
  for (const AssignedItem& item : items) {
    append_varint(message, item.index);
    append_varint(message, item.part ? item.part->dimensions() + 1 : 0);
    if (!item.part) continue;
    manifest::append_extents(message, item.part->offsets());
    manifest::append_extents(message, item.part->sizes());
  }
}

Result<std::vector<AssignedItem>> read_assigned_items(CodedReader& reader) {
  CAIRN_TRY_ASSIGN(const std::uint64_t count, reader.count());
  std::vector<AssignedItem> items;
  items.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    CAIRN_TRY_ASSIGN(AssignedItem item, read_assigned(reader));
    items.push_back(std::move(item));
  }
  return items;
}

}  // namespace cairn::save_plan
