// From a nested state to its leaves, each under a path of its own: the rules of DCP
// (torch.distributed.checkpoint._nested_dict).
//
// Since torch 2.4 every mapping is taken apart; a list only if there is a tensor or a mapping somewhere in its lists; a
// tuple never. Until 2.3 a container without any tensor in it stayed whole. Keys of mappings become strings.
#pragma once

#include <cairn/state_dict.h>
#include <nanobind/nanobind.h>

#include <cstddef>
#include <span>

namespace nb = nanobind;

namespace cairn::python {

enum class FlatteningRules {
  kTorch24,   // and later
  kTorch23,   // and earlier
  kTopLevel,  // nothing is taken apart: flatten_state_dict=False
};

// A value that is stored under a key of its own. Alive while it is visited.
struct Leaf {
  std::span<const nb::object> path;  // str (keys of mappings) and int (positions in lists)
  nb::handle value;
  nb::handle container;  // container[place] is the value
  nb::handle place;
};

// A leaf's path, for Python and for the engine.
nb::tuple path_tuple(const Leaf& leaf);
Path path_of(const Leaf& leaf);

class LeafVisitor {
 public:
  virtual ~LeafVisitor() = default;
  virtual void visit(const Leaf& leaf) = 0;
  // About so many more are to come.
  virtual void expect(std::size_t) {}
};

// Visits the leaves of a mapping in its order. Throws an Error, kInvalidArgument, for a state that contains itself, or
// is nested more than a thousand deep. What mappings raise, and what the visitor throws, goes through.
void for_each_leaf(nb::handle mapping, FlatteningRules rules, LeafVisitor& visitor);

// Whether the value is an instance of one of Python's own types that are no containers to the rules above, subclasses
// excluded: None, bool, int, float, complex, str, bytes, tuple, set.
bool is_builtin_leaf(nb::handle value);

}  // namespace cairn::python
