// SaveItems: the items of a state dict for a save: one item for each entry, values already serialised.
//
// The items are views into the state dict, which outlives the SaveItems.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data_file/file_image.h"
#include "save_plan/assigned_item.h"

namespace cairn::checkpointer {

using save_plan::AssignedItem;

// Which memory the reader of the items can read.
enum class ReadableMemory : std::uint8_t { kOfCpu, kOfAnyDevice };

class SaveItems {
 public:
  // Fails with kUnsupported for values that have no native form, and for tensors in memory that is not `readable`.
  static Result<SaveItems> make(const StateDict& state, ReadableMemory readable = ReadableMemory::kOfCpu) {
    return make(state.entries(), readable);
  }
  // As make(), of entries that outlive the SaveItems.
  static Result<SaveItems> make(std::span<const Entry> entries, ReadableMemory readable = ReadableMemory::kOfCpu);

  // In the order of the entries.
  const std::vector<data_file::ItemSource>& sources() const { return sources_; }

  // All items, whole.
  std::vector<AssignedItem> all() const;
  // The items to write. kCorrupt if an assignment names a missing item or a part outside the item.
  Result<std::vector<data_file::ItemSource>> take(std::span<const AssignedItem> assigned);

 private:
  Result<data_file::ItemSource> item_of(const Entry& entry);
  Result<data_file::ItemSource> part_of(const data_file::ItemSource& source, const Box& part);

  std::vector<data_file::ItemSource> sources_;
  std::deque<std::string> archives_;  // stable addresses: `sources_` points into the strings
  std::deque<TensorEntry> parts_;     // likewise
};

}  // namespace cairn::checkpointer
