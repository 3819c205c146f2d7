// RenamedShape: the shape of a nested state by the places that its keys have after renames.
//
// Pure. One thread at a time.
#pragma once

#include <cairn/state_dict.h>

#include <cstddef>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "core/key_renames.h"
#include "core/nested_shape.h"
#include "core/seeded_hash.h"

namespace cairn::checkpointer {

class RenamedShape {
 public:
  // `source` outlives the RenamedShape.
  explicit RenamedShape(const NestedShape& source);

  // A key, or an empty mapping, of the source at `old`, with its new name: the steps that the rename has kept keep the
  // types of their keys and the classes of their dicts.
  void add_steps(const Path& old, const KeyName& name);
  void add_empty(Path place, std::size_t before) { renamed_.empty.push_back({std::move(place), before}); }

  NestedShape take() && { return std::move(renamed_); }

 private:
  // What the source has at a place; null: nothing.
  struct Part {
    const NestedShape::Key* key = nullptr;
    const NestedShape::Ordered* ordered = nullptr;
    const NestedShape::Unheld* unheld = nullptr;
  };
  void add_part(const Part& part, const Path& place, std::size_t steps);

  std::unordered_map<std::string, Part, SeededHash> parts_;  // by the text of the old place
  std::unordered_set<std::string, SeededHash> known_;        // texts of new places
  NestedShape renamed_;
};

}  // namespace cairn::checkpointer
