#include "save/held_parts.h"

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "checkpoint/listed_keys.h"
#include "plan/chunk_validation.h"

namespace cairn::checkpointer {
namespace {

struct HeldChunks {
  const Extents* shape = nullptr;   // of the whole tensor
  std::vector<std::int64_t> boxes;  // as in plan::TensorChunks
};

// Without the tensors that are a single chunk.
std::map<std::string_view, HeldChunks> chunks_by_key(const StateDict& state) {
  std::map<std::string_view, HeldChunks> held;
  for (const Entry& entry : state.entries()) {
    const auto* const tensor = std::get_if<TensorEntry>(&entry.content);
    if (tensor == nullptr || tensor->local.sizes == tensor->global_shape) continue;
    HeldChunks& chunks = held[entry.fqn];
    chunks.shape = &tensor->global_shape;
    for (const Extents& row : {tensor->box.offsets(), tensor->box.sizes()}) {
      chunks.boxes.insert(chunks.boxes.end(), row.begin(), row.end());
    }
  }
  return held;
}

}  // namespace

std::optional<std::string> warning_of_parts(const StateDict& state) {
  std::vector<std::string> keys;
  for (const auto& [fqn, chunks] : chunks_by_key(state)) {
    const auto whole = plan::validate_chunks({fqn, *chunks.shape, chunks.boxes, {}}, plan::Coverage::kWhole);
    if (!whole) keys.emplace_back(fqn);
  }
  if (keys.empty()) return std::nullopt;
  return "this process saved alone and holds only parts of tensors, so that only these parts can be loaded: " +
         listed_keys(keys) +
         "; let all ranks save together (with a process group or collectives), or declare a save of one rank "
         "(use_collectives=False, alone_as_rank)";
}

}  // namespace cairn::checkpointer
