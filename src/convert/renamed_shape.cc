#include "convert/renamed_shape.h"

#include <utility>
#include <vector>

#include "core/place_text.h"

namespace cairn::checkpointer {

RenamedShape::RenamedShape(const NestedShape& source) {
  for (const NestedShape::Key& key : source.keys) parts_[place_text(key.place)].key = &key;
  for (const NestedShape::Ordered& ordered : source.ordered) parts_[place_text(ordered.place)].ordered = &ordered;
  for (const NestedShape::Unheld& unheld : source.unheld) parts_[place_text(unheld.place)].unheld = &unheld;
  const auto whole = parts_.find("");
  if (whole != parts_.end()) add_part(whole->second, {}, 0);
}

void RenamedShape::add_steps(const Path& old, const KeyName& name) {
  if (parts_.empty()) return;
  std::vector<std::string> old_places;
  std::string old_place;
  for (const PathElement& step : old) {
    append_step(old_place, step);
    old_places.push_back(old_place);
  }
  std::string place;
  for (std::size_t i = 0; i < name.path.size(); ++i) {
    append_step(place, name.path[i]);
    if (name.origins[i] < 0) continue;
    const auto found = parts_.find(old_places[static_cast<std::size_t>(name.origins[i])]);
    if (found == parts_.end() || !known_.insert(place).second) continue;
    add_part(found->second, name.path, i + 1);
  }
}

void RenamedShape::add_part(const Part& part, const Path& place, std::size_t steps) {
  const Path here(place.begin(), place.begin() + static_cast<std::ptrdiff_t>(steps));
  if (part.key != nullptr) renamed_.keys.push_back({here, part.key->key});
  if (part.ordered != nullptr) renamed_.ordered.push_back({here, part.ordered->attributes});
  if (part.unheld != nullptr) renamed_.unheld.push_back({here, part.unheld->description});
}

}  // namespace cairn::checkpointer
