// NestedState: the nested dicts and lists of a state, from the paths of its parts.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstdint>
#include <memory>
#include <string>

namespace cairn::checkpointer {

// As DCP's unflatten_state_dict: a text is a key of a dict, an integer a position in a list; a list is filled up with
// None. One thread at a time.
class NestedState {
 public:
  NestedState();
  ~NestedState();

  // `path` is not empty. kCorrupt if the path leads through a part that is no container, names a part twice, or mixes
  // keys and positions; kUnsupported if the path is longer than a pickle nests.
  Result<void> add(const Path& path, Value value);

  // The key of a dict at `place` is `key` in place of its text. Nothing happens if the state has no such place.
  void set_key(const Path& place, Value key);
  // The dict at `place` is a collections.OrderedDict with these attributes: a dict, or None. The place of the whole
  // state is empty. Nothing happens if the state has no dict there.
  void set_ordered(const Path& place, Value attributes);

  // The container at `place` has this Value::identity(). Nothing happens if the state has no container there.
  void set_object(const Path& place, std::uint64_t identity);

  // The whole state: a dict, in the order in which the parts were added. kUnsafe for a list that would be far longer
  // than its parts.
  Result<Value> take() &&;

 private:
  struct Node;
  Node* find(const Path& place) const;
  std::unique_ptr<Node> root_;
};

}  // namespace cairn::checkpointer
