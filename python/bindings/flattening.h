// Flattening: splits a nested state into leaves, each under its own path, by the rules of DCP
// (torch.distributed.checkpoint._nested_dict).
//
// Since torch 2.4 every mapping is split. A list is split only if the list, or a list inside of the list, has a tensor
// or a mapping. A tuple is never split. Until torch 2.3 a container without tensors stayed whole. Keys of mappings
// become strings.
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
  kTopLevel,  // no container is split: flatten_state_dict=False
};

// A value under a key of its own. The handles are valid during the visit.
struct Leaf {
  std::span<const nb::object> path;  // str (keys of mappings) and int (positions in lists)
  nb::handle value;
  nb::handle container;  // container[place] is `value`
  nb::handle place;
};

// A leaf's path, for Python and for the engine.
nb::tuple path_tuple(const Leaf& leaf);
Path path_of(const Leaf& leaf);

class LeafVisitor {
 public:
  virtual ~LeafVisitor() = default;
  virtual void visit(const Leaf& leaf) = 0;
  // The walk expects about this many leaves to come.
  virtual void expect(std::size_t) {}
  // Whether the walk fails, with kInvalidArgument, at a mapping in which two keys have one text: flat names would merge
  // what lies below them.
  virtual bool refuses_equal_texts() const { return false; }
};

// Visits the leaves of a mapping, in the mapping's order. Throws an Error, kInvalidArgument, for a state that contains
// itself, or that is nested more than a thousand deep. Passes on exceptions of mappings and of the visitor.
void for_each_leaf(nb::handle mapping, FlatteningRules rules, LeafVisitor& visitor);

// Whether kTorch23 gives other leaves than kTorch24. Throws as for_each_leaf().
bool old_rules_differ(nb::handle mapping);

// Whether the value has exactly a built-in type that the rules above never split: None, bool, int, float, complex, str,
// bytes, tuple, set.
bool is_builtin_leaf(nb::handle value);

}  // namespace cairn::python
