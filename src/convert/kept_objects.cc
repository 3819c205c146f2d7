#include "convert/kept_objects.h"

#include <cairn/tensor.h>

#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "convert/tied_tensors.h"
#include "core/seeded_hash.h"
#include "format/torch_file/weights_only.h"

namespace cairn::checkpointer {
namespace {

using torch_file::StateFile;

// The attributes, if they are plain data.
Result<std::optional<Value>> plain_attributes(const StateFile& file, pickle::Node node) {
  Result<Value> attributes = file.read_attributes(node);
  if (!attributes && attributes.error().code() == ErrorCode::kUnsupported) return std::optional<Value>();
  if (!attributes) return std::move(attributes).error();
  if (!torch_file::first_refused_class(*attributes).empty()) return std::optional<Value>();
  return std::optional<Value>(*std::move(attributes));
}

// The keys of the plan, by the entry of the source.
class Unchanged {
 public:
  Unchanged(const ConvertSource& source, const ConvertPlan& plan) : file_(*source.torch_file()) {
    for (std::size_t i = 0; i < plan.keys.size(); ++i) {
      const ConvertKey& key = plan.keys[i];
      const StateFile::Entry& entry = *file_.find(key.source_fqn());
      const bool keeps_object = key.tensor == nullptr || object_of(plan, i, source) != 0;
      keys_.emplace(&entry, keeps_object && key.name.path == entry.path);
    }
  }

  bool has_any(const NestedShape::Container& container) const {
    for (std::size_t i = container.begin; i < container.end; ++i) {
      if (keys_.contains(&file_.entries()[i])) return true;
    }
    return false;
  }
  bool has_all(const NestedShape::Container& container) const {
    for (std::size_t i = container.begin; i < container.end; ++i) {
      const auto found = keys_.find(&file_.entries()[i]);
      if (found == keys_.end() || !found->second) return false;
    }
    return true;
  }

 private:
  const StateFile& file_;
  std::unordered_map<const StateFile::Entry*, bool> keys_;  // whether the plan leaves the entry as it is
};

}  // namespace

Result<void> note_attributes(const ConvertSource& source, const ConvertOptions& options, bool keeps_any,
                             ConvertPlan& plan) {
  const StateFile* const file = source.torch_file();
  if (file == nullptr) return {};
  const bool has_place = keeps_any && options.to == CheckpointFormat::kTorchSave;
  for (std::size_t i = 0; i < plan.keys.size(); ++i) {
    const ConvertKey& key = plan.keys[i];
    const StateFile::Entry* const entry = key.tensor != nullptr ? file->find(key.tensor->fqn) : nullptr;
    const pickle::Node node = entry != nullptr ? file->attributes_of(*entry) : pickle::Node();
    if (!node.is_set()) continue;
    if (has_place && is_quantized(key.dtype)) continue;  // copied with its pickle, or refused
    std::optional<Value> attributes;
    if (has_place) {
      Result<std::optional<Value>> read = plain_attributes(*file, node);
      if (!read) return std::move(read).error().key(key.source_fqn());
      attributes = *std::move(read);
    }
    if (attributes) {
      plan.attributes.emplace(i, *std::move(attributes));
    } else {
      plan.without_attributes.push_back(key.source_fqn());
    }
  }
  return {};
}

void note_containers(const ConvertSource& source, const NestedShape& shape, ConvertPlan& plan) {
  if (source.torch_file() == nullptr) return;
  const Unchanged unchanged(source, plan);
  const bool keeps_empty = plan.shape.empty.size() == shape.empty.size();
  struct Places {
    std::size_t count = 0;
    bool is_whole = true;
  };
  std::unordered_map<std::uint64_t, Places, SeededHash> objects;
  for (const NestedShape::Container& container : shape.containers) {
    if (!unchanged.has_any(container)) continue;
    Places& places = objects[container.object];
    ++places.count;
    const bool is_whole = container.is_held && keeps_empty && unchanged.has_all(container);
    places.is_whole = places.is_whole && is_whole;
    if (is_whole) plan.whole_containers.emplace_back(container.place, container.object);
  }
  for (const NestedShape::Container& container : shape.containers) {
    const auto found = objects.find(container.object);
    const bool is_separated = found != objects.end() && found->second.count > 1 && !found->second.is_whole;
    if (is_separated && unchanged.has_any(container)) plan.separated.push_back(fqn_of(container.place));
  }
}

}  // namespace cairn::checkpointer
