// read_json_path: the path of a tensor as torch_checkpointing saves paths: a JSON list of keys and positions.
//
// Pure. A path becomes the flat name that DCP gives a key: the steps as text, joined by dots.
#pragma once

#include <cairn/result.h>

#include <string>
#include <string_view>

namespace cairn::torch_checkpointing {

// `["layers",0,"weight"]` is "layers.0.weight"; the empty list is the empty text. kCorrupt if the text is no JSON list.
Result<std::string> read_json_path(std::string_view text);

// A path whose first step is an item.
struct ItemPath {
  std::string item;
  std::string rest;  // as of read_json_path()
};
Result<ItemPath> read_item_path(std::string_view text);

}  // namespace cairn::torch_checkpointing
