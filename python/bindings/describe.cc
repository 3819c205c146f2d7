// describe: fills a StateDict with the leaves of a nested state, in a single pass, without a Python object per leaf.
#include <cairn/state_dict.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bound.h"
#include "errors.h"
#include "flattening.h"
#include "held_storages.h"
#include "plain_tensors.h"
#include "state_dict.h"
#include "text.h"
#include "values.h"
#include "written_tensors.h"

namespace cairn::python {
namespace {

// The memory of a tensor for a load to fill. Nullopt if the tensor is not plain or declares its chunks, or if elements
// share memory (a stride of 0).
std::optional<TensorView> target_view_of(const PlainTensors& tensors, nb::handle tensor) {
  std::optional<TensorView> view = tensors.view_of_entry(tensor);
  if (!view) return std::nullopt;
  const bool repeats = std::find(view->strides.begin(), view->strides.end(), 0) != view->strides.end();
  if (repeats && view->data != nullptr) return std::nullopt;
  return view;
}

// Adds a tensor for a load to fill. False: nothing was added.
bool add_target(const PlainTensors& tensors, StateDict& state, nb::handle path, nb::handle tensor) {
  std::optional<TensorView> view = target_view_of(tensors, tensor);
  if (!view) return false;
  expect_added(state, state.add_tensor(to_path(path), std::move(*view)));
  tensors.storage_of(tensor, state.entries().back());  // throws if the storage lacks elements
  return true;
}

// Two tensors in chunks could else become one tensor: chunks share a name.
void expect_new(const StateDict& state, const Leaf& leaf) {
  const std::string fqn = fqn_of(path_of(leaf));
  if (state.find(fqn) != nullptr) throw duplicated_key(fqn);
}

// Adds the leaves in their order. Adds plain tensors, and plain values of built-in types, directly; calls
// `add_other(path, value)` for the remaining leaves. Holds the storages of the plain tensors.
class Description : public LeafVisitor {
 public:
  // `records_strides`: the strides of the tensors are to be recorded in the metadata.
  Description(StateDict& state, const PlainTensors& tensors, HeldStorages& held, bool records_strides,
              const nb::callable& add_other)
      : state_(state), tensors_(tensors), held_(held), records_strides_(records_strides), add_other_(add_other) {}

  void expect(std::size_t more) override { state_.reserve(more); }
  bool refuses_equal_texts() const override { return true; }

  void visit(const Leaf& leaf) override {
    if (is_builtin_leaf(leaf.value)) {
      if (std::optional<Value> value = to_value(leaf.value)) {
        expect_added(state_, state_.add_value(path_of(leaf), std::move(*value)));
        return;
      }
    }
    if (std::optional<TensorView> view = tensors_.view_of_entry(leaf.value)) {
      TensorTraits traits{.requires_grad = tensors_.requires_grad(leaf.value)};
      if (records_strides_) traits.strides = std::make_shared<const Extents>(view->strides);
      expect_added(state_, state_.add_tensor(path_of(leaf), std::move(*view), std::move(traits)));
      held_.add(state_.entries().size() - 1, tensors_.storage_of(leaf.value, state_.entries().back()));
    } else {
      expect_new(state_, leaf);
      add_other_(path_tuple(leaf), leaf.value);
    }
  }

 private:
  StateDict& state_;
  const PlainTensors& tensors_;
  HeldStorages& held_;
  bool records_strides_;
  const nb::callable& add_other_;
};

// As Description, for a load: adds the targets that are plain, and calls `add_other(path, value, container, place)` for
// the remaining leaves.
class TargetDescription : public LeafVisitor {
 public:
  // `selected`: the set of the keys to add; None: all keys.
  TargetDescription(StateDict& state, const PlainTensors& tensors, WrittenTensors& written,
                    const nb::callable& add_other, nb::handle selected)
      : state_(state), tensors_(tensors), written_(written), add_other_(add_other), selected_(selected) {}

  void expect(std::size_t more) override { state_.reserve(more); }

  void visit(const Leaf& leaf) override {
    if (!is_selected(leaf)) return;
    std::optional<TensorView> view = target_view_of(tensors_, leaf.value);
    if (!view) {
      expect_new(state_, leaf);
      add_other_(path_tuple(leaf), leaf.value, leaf.container, leaf.place);
      return;
    }
    expect_added(state_, state_.add_tensor(path_of(leaf), std::move(*view)));
    nb::object storage = tensors_.storage_of(leaf.value, state_.entries().back());
    written_.add(state_.entries().size() - 1, nb::borrow(leaf.value), std::move(storage));
  }

 private:
  bool is_selected(const Leaf& leaf) const {
    if (selected_.is_none()) return true;
    const int answer = PySet_Contains(selected_.ptr(), to_str(fqn_of(path_of(leaf))).ptr());
    if (answer < 0) throw nb::python_error();
    return answer != 0;
  }

  StateDict& state_;
  const PlainTensors& tensors_;
  WrittenTensors& written_;
  const nb::callable& add_other_;
  nb::handle selected_;
};

// `write`: (PlainTensors, WrittenTensors, the set of the keys to add or None).
void describe_targets(StateDict& state, nb::handle state_dict, FlatteningRules rules, const nb::tuple& write,
                      const nb::callable& add_other) {
  TargetDescription description(state, nb::cast<PlainTensors&>(write[0]), nb::cast<WrittenTensors&>(write[1]),
                                add_other, write[2]);
  for_each_leaf(state_dict, rules, description);
}

// `read`: (PlainTensors, HeldStorages, whether strides are recorded).
void describe(StateDict& state, nb::handle state_dict, FlatteningRules rules, const nb::tuple& read,
              const nb::callable& add_other) {
  Description description(state, nb::cast<PlainTensors&>(read[0]), nb::cast<HeldStorages&>(read[1]),
                          nb::cast<bool>(read[2]), add_other);
  for_each_leaf(state_dict, rules, description);
}

}  // namespace

void bind_describe(nb::module_& module) {
  nb::class_<PlainTensors>(module, "PlainTensors")
      .def(nb::init<const nb::dict&, const nb::tuple&, nb::object>(), nb::arg("codes"), nb::arg("marks"),
           nb::arg("cuda_streams").none() = nb::none())
      .def("__contains__",
           [](const PlainTensors& tensors, nb::handle tensor) { return tensors.view_of(tensor).has_value(); })
      .def("add_target", add_target)
      .def("check_memory", [](const PlainTensors& tensors, const nb::str& key, nb::handle tensor) {
        tensors.check_memory(to_utf8(key), tensor);
      });
  module.def("describe", describe);
  module.def("describe_targets", describe_targets);
}

}  // namespace cairn::python
