#include "convert/key_twins.h"

#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>

#include "core/place_text.h"
#include "core/seeded_hash.h"
#include "format/torch_file/key_text.h"

namespace cairn::checkpointer {
namespace {

// The steps that change, by the text of their place in the plan.
using NewSteps = std::unordered_map<std::string, std::string, SeededHash>;

// The text of the key at `key.place`, if the last step of the place has the key's type, too.
std::optional<std::string> text_of_typed(const NestedShape::Key& key) {
  std::optional<std::string> text = torch_file::key_text(key.key);
  const auto* const step = key.place.empty() ? nullptr : std::get_if<std::string>(&key.place.back());
  if (!text || step == nullptr || !step->starts_with(*text + ":")) return std::nullopt;
  return text;
}

void add_places(const Path& path, std::unordered_set<std::string, SeededHash>& places) {
  std::string place;
  for (const PathElement& step : path) {
    append_step(place, step);
    places.insert(place);
  }
}

// Returns whether a step of the path has changed.
bool change_steps(Path& path, const NewSteps& steps) {
  bool is_changed = false;
  std::string place;
  for (PathElement& step : path) {
    append_step(place, step);
    const auto found = steps.find(place);
    if (found == steps.end()) continue;
    step = found->second;
    is_changed = true;
  }
  return is_changed;
}

void change_shape(NestedShape& shape, const NewSteps& steps) {
  for (NestedShape::Key& key : shape.keys) change_steps(key.place, steps);
  for (NestedShape::Empty& empty : shape.empty) change_steps(empty.place, steps);
  for (NestedShape::Ordered& ordered : shape.ordered) change_steps(ordered.place, steps);
  for (NestedShape::Unheld& unheld : shape.unheld) change_steps(unheld.place, steps);
}

}  // namespace

Result<void> settle_twins(ConvertPlan& plan) {
  NewSteps steps;
  std::unordered_set<std::string, SeededHash> places;
  for (const NestedShape::Key& key : plan.shape.keys) {
    const std::optional<std::string> text = text_of_typed(key);
    if (!text) continue;
    if (places.empty()) {
      for (const ConvertKey& it : plan.keys) add_places(it.name.path, places);
      for (const NestedShape::Empty& it : plan.shape.empty) add_places(it.place, places);
    }
    std::string around;
    for (std::size_t i = 0; i + 1 < key.place.size(); ++i) append_step(around, key.place[i]);
    std::string twin = around;
    append_step(twin, *text);
    if (places.contains(twin)) {
      return Error(ErrorCode::kInvalidArgument,
                   "two keys of a dict have the same text, and the target names keys by text: leave one of them out "
                   "(option exclude), or give one of them another name (option renames)")
          .key(fqn_of(key.place))
          .actual(*text + " (" + std::string(torch_file::key_type(key.key)) + ") and '" + *text + "' (str)");
    }
    std::string place = around;
    append_step(place, key.place.back());
    steps.emplace(std::move(place), *text);
  }
  if (steps.empty()) return {};
  for (ConvertKey& key : plan.keys) {
    if (change_steps(key.name.path, steps)) key.name.fqn = fqn_of(key.name.path);
  }
  change_shape(plan.shape, steps);
  return {};
}

}  // namespace cairn::checkpointer
