// SaveItems: what a state dict comes to when it is saved: one item for each entry, values already serialised.
//
// Views into the state dict, which outlives it.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data_file/file_image.h"

namespace cairn::checkpointer {

// An item that this rank is to write: `index` into its items, and the part of it if others write the rest.
struct AssignedItem {
  std::uint32_t index = 0;
  std::optional<Box> part;  // in the coordinates of the whole tensor

  friend bool operator==(const AssignedItem&, const AssignedItem&) = default;
};

class SaveItems {
 public:
  // Fails with kUnsupported for values that have no native form.
  static Result<SaveItems> make(const StateDict& state);

  // In the order of the entries.
  const std::vector<data_file::ItemSource>& sources() const { return sources_; }

  // The items to write. kCorrupt if an assignment names what is not there.
  Result<std::vector<data_file::ItemSource>> take(std::span<const AssignedItem> assigned);

 private:
  Result<data_file::ItemSource> item_of(const Entry& entry);
  Result<data_file::ItemSource> part_of(const data_file::ItemSource& source, const Box& part);

  std::vector<data_file::ItemSource> sources_;
  std::deque<std::string> archives_;  // stable addresses: the sources look into them
  std::deque<TensorEntry> parts_;     // likewise
};

}  // namespace cairn::checkpointer
