// NestedShape: the parts of a nested state that its flat keys lose.
//
// Pure. A place is a path from the top of the state: keys of mappings as text, and positions in lists.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

// The key of a DCP checkpoint under which keys and empty mappings are saved (docs/format.md, section 9).
inline constexpr std::string_view kNestedShapeKey = "__cairn_shape__";

struct NestedShape {
  // A key of a mapping that is no text.
  struct Key {
    Path place;
    Value key;
  };
  // A mapping without entries. `before`: the number of flat keys that come first in the state.
  struct Empty {
    Path place;
    std::size_t before = 0;
  };
  // A collections.OrderedDict; `attributes` is the dict of its attributes, or None.
  struct Ordered {
    Path place;
    Value attributes;
  };
  // A mapping of a class, or an attribute, that a Value can't hold.
  struct Unheld {
    Path place;
    std::string description;
  };
  // A mapping or a list with flat keys inside, except for the whole state. `object` is equal for places that hold one
  // Python object, as Value::identity(). The flat keys inside are [begin, end).
  struct Container {
    Path place;
    std::uint64_t object = 0;
    std::size_t begin = 0;
    std::size_t end = 0;
    bool is_held = true;  // whether `unheld` has nothing of the container
  };
  std::vector<Key> keys;
  std::vector<Empty> empty;
  std::vector<Ordered> ordered;
  std::vector<Unheld> unheld;
  std::vector<Container> containers;  // of a file of torch.save
};

// Whether Python can hash the value, and a file can hold the value as a key.
bool is_key_of_mapping(const Value& value);

// The value under kNestedShapeKey: keys and empty mappings.
Value shape_value(const NestedShape& shape);
// kCorrupt if `value` is not of the form that shape_value() makes. Without positions in the value, as Cairn's Python
// writes it, every `before` is the largest number.
Result<NestedShape> shape_in(const Value& value);

}  // namespace cairn
