#include "checkpoint/model_metadata.h"

#include <string_view>

#include "format/safetensors/sharding_info.h"

namespace cairn::checkpointer {
namespace {

bool describes_a_save(std::string_view name) {
  return name.starts_with("cairn_") || name == safetensors::kShardingInfoName || name == "DCP_VERSION";
}

}  // namespace

void ModelMetadata::add(const safetensors::Header& header) {
  for (const auto& [name, value] : header.metadata) {
    if (describes_a_save(name)) continue;
    const auto [entry, is_new] = entries.emplace(name, value);
    if (!is_new && entry->second != value) conflicts.insert(name);
  }
}

}  // namespace cairn::checkpointer
