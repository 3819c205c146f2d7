// sharding_info: the entry "DCP_SHARDING_INFO" of a header's metadata: where each tensor of the file lies in the tensor
// of its name that several files make up.
//
// torch's HuggingFaceStorageWriter writes the entry with save_distributed=True: a JSON text that maps the tensor's name
// to {"saved_offsets": [..]}. Pure; the text is untrusted.
#pragma once

#include <cairn/result.h>
#include <cairn/tensor.h>

#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/seeded_hash.h"

namespace cairn::safetensors {

inline constexpr std::string_view kShardingInfoName = "DCP_SHARDING_INFO";

using SavedOffsets = std::unordered_map<std::string, Extents, SeededHash>;

// kCorrupt for a text that is not such a JSON object, and for a name twice.
Result<SavedOffsets> read_sharding_info(std::string_view text);

// The text for tensors, each once: the name and the offsets of the box. The pointers are not kept. kInvalidArgument for
// a name that is not UTF-8.
Result<std::string> render_sharding_info(std::span<const std::pair<std::string_view, const Extents*>> tensors);

}  // namespace cairn::safetensors
