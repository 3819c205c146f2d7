#include "flattening.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "bound.h"
#include "errors.h"
#include "new_reference.h"
#include "text.h"

namespace cairn::python {
namespace {

constexpr int kContainersMax = 1000;  // of containers in containers; detects a container that contains itself

nb::object iterator_of(nb::handle iterable) { return checked(PyObject_GetIter(iterable.ptr())); }

// The next item; an invalid object at the end.
nb::object next_of(const nb::object& iterator) {
  nb::object item = nb::steal(PyIter_Next(iterator.ptr()));
  if (!item.is_valid() && PyErr_Occurred() != nullptr) throw nb::python_error();
  return item;
}

bool is_instance(nb::handle value, nb::handle type) {
  const int answer = PyObject_IsInstance(value.ptr(), type.ptr());
  if (answer < 0) throw nb::python_error();
  return answer != 0;
}

nb::object text_of(const nb::object& key) {
  return PyUnicode_CheckExact(key.ptr()) ? key : checked(PyObject_Str(key.ptr()));
}

// The kinds of the keys of one mapping.
class KeyKinds {
 public:
  // Returns whether the types alone show that no two keys so far have one text: all are text, or all are integers.
  bool add(nb::handle key) {
    PyTypeObject* const type = Py_TYPE(key.ptr());
    if (first_ == nullptr) first_ = type;
    return type == first_ && (type == &PyUnicode_Type || type == &PyLong_Type);
  }

 private:
  PyTypeObject* first_ = nullptr;
};

class Flattening {
 public:
  Flattening(FlatteningRules rules, LeafVisitor& visitor) : rules_(rules), visitor_(visitor) {}

  void walk_mapping(nb::handle mapping) {
    const Level level(*this);
    if (PyDict_CheckExact(mapping.ptr())) visitor_.expect(static_cast<std::size_t>(PyDict_Size(mapping.ptr())));
    const nb::object items = iterator_of(nb::object(mapping.attr("items")()));
    KeyKinds kinds;
    bool are_checked = !visitor_.refuses_equal_texts();
    while (true) {
      const auto [key, value] = next_pair(items);
      if (!key.is_valid()) return;
      if (!are_checked && !kinds.add(key)) {
        refuse_equal_texts(mapping);
        are_checked = true;
      }
      path_.push_back(text_of(key));
      walk_value(value, mapping, key);
      path_.pop_back();
    }
  }

  // Whether the value is a container that the rules split.
  bool comes_apart(nb::handle value) {
    if (rules_ == FlatteningRules::kTopLevel || is_leaf(value)) return false;
    const bool mapping = is_mapping(value);
    if (!mapping && !PyList_Check(value.ptr())) return false;
    if (mapping && rules_ == FlatteningRules::kTorch24) return true;
    const Level level(*this);
    const nb::object items = iterator_of(mapping ? nb::object(value.attr("values")()) : nb::borrow(value));
    for (nb::object item = next_of(items); item.is_valid(); item = next_of(items)) {
      if (is_tensor(item) || comes_apart(item)) return true;
    }
    return false;
  }

 private:
  // A level of the walk: the constructor steps down, the destructor steps up.
  class Level {
   public:
    explicit Level(Flattening& walk) : depth_(walk.depth_) {
      if (depth_ == kContainersMax) {
        throw Error(ErrorCode::kInvalidArgument, "the state dict contains itself, or is nested too deeply");
      }
      ++depth_;
    }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --depth_; }

   private:
    int& depth_;
  };

  void refuse_equal_texts(nb::handle mapping) const {
    const nb::dict keys;  // by text
    const nb::object iterator = iterator_of(mapping);
    for (nb::object key = next_of(iterator); key.is_valid(); key = next_of(iterator)) {
      const nb::object text = text_of(key);
      const nb::handle twin = PyDict_GetItemWithError(keys.ptr(), text.ptr());
      if (!twin.is_valid() && PyErr_Occurred() != nullptr) throw nb::python_error();
      if (twin.is_valid()) throw equal_texts(text, twin, key);
      if (PyDict_SetItem(keys.ptr(), text.ptr(), key.ptr()) != 0) throw nb::python_error();
    }
  }

  // The error for two keys of the mapping at `path_`.
  Error equal_texts(const nb::object& text, nb::handle first, nb::handle second) const {
    const auto described = [](nb::handle key) {
      const nb::object type = nb::borrow(key.type().attr("__name__"));
      return to_utf8(checked(PyObject_Repr(key.ptr()))) + " (" + to_utf8(type) + ")";
    };
    std::string place;
    for (const nb::object& step : path_) place += to_utf8(text_of(step)) + ".";
    return Error(ErrorCode::kInvalidArgument,
                 "two keys of a dict have the same text, and a checkpoint names keys by text: rename one of them")
        .key(place + to_utf8(text))
        .actual(described(first) + " and " + described(second));
  }

  // The next pair of items(), unpacked; a pair of invalid objects at the end.
  static std::pair<nb::object, nb::object> next_pair(const nb::object& items) {
    nb::object item = next_of(items);
    if (!item.is_valid()) return {};
    if (!PyTuple_Check(item.ptr())) item = checked(PySequence_Tuple(item.ptr()));
    if (PyTuple_Size(item.ptr()) != 2) throw nb::value_error("items() of a mapping must yield pairs");
    return {nb::borrow(PyTuple_GetItem(item.ptr(), 0)), nb::borrow(PyTuple_GetItem(item.ptr(), 1))};
  }

  void walk_list(nb::handle list) {
    const Level level(*this);
    const nb::object items = iterator_of(list);
    for (Py_ssize_t i = 0;; ++i) {
      const nb::object item = next_of(items);
      if (!item.is_valid()) return;
      path_.push_back(checked(PyLong_FromSsize_t(i)));
      walk_value(item, list, nb::object(path_.back()));
      path_.pop_back();
    }
  }

  void walk_value(nb::handle value, nb::handle container, nb::handle place) {
    if (!comes_apart(value)) {
      visitor_.visit({path_, value, container, place});
    } else if (is_mapping(value)) {
      walk_mapping(value);
    } else {
      walk_list(value);
    }
  }

  // The exact type decides for most values; isinstance() with an abstract class is slow.
  bool is_leaf(nb::handle value) const {
    const nb::handle type = value.type();
    return type.is(tensor_) || type.is(parameter_) || type.is(size_) || is_builtin_leaf(value);
  }
  bool is_mapping(nb::handle value) const {
    if (PyDict_Check(value.ptr())) return true;
    return !PyList_CheckExact(value.ptr()) && is_instance(value, mapping_);
  }
  bool is_tensor(nb::handle value) const {
    const nb::handle type = value.type();
    if (type.is(tensor_) || type.is(parameter_)) return true;
    return !is_leaf(value) && is_instance(value, tensor_);
  }

  FlatteningRules rules_;
  LeafVisitor& visitor_;
  nb::object torch_ = nb::module_::import_("torch");
  nb::object tensor_ = torch_.attr("Tensor");
  nb::object parameter_ = torch_.attr("nn").attr("Parameter");
  nb::object size_ = torch_.attr("Size");
  nb::object mapping_ = nb::module_::import_("collections.abc").attr("Mapping");
  std::vector<nb::object> path_;
  int depth_ = 0;
};

class LeafList : public LeafVisitor {
 public:
  explicit LeafList(const nb::callable& make_leaf) : make_leaf_(make_leaf) {}
  void visit(const Leaf& leaf) override {
    leaves_.append(make_leaf_(path_tuple(leaf), leaf.value, leaf.container, leaf.place));
  }
  const nb::list& leaves() const { return leaves_; }

 private:
  const nb::callable& make_leaf_;
  nb::list leaves_;
};

// For the walk's own check.
class TextCheck : public LeafVisitor {
 public:
  void visit(const Leaf&) override {}
  bool refuses_equal_texts() const override { return true; }
};

// Compares the leaves of a walk with the rules of torch 2.4, which split every container that other rules split.
class SplitComparison : public LeafVisitor {
 public:
  void visit(const Leaf& leaf) override { differs_ = differs_ || newest_.comes_apart(leaf.value); }
  bool differs() const { return differs_; }

 private:
  Flattening newest_{FlatteningRules::kTorch24, *this};
  bool differs_ = false;
};

}  // namespace

nb::tuple path_tuple(const Leaf& leaf) {
  const nb::object tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(leaf.path.size())));
  for (std::size_t i = 0; i < leaf.path.size(); ++i) {
    PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i), nb::object(leaf.path[i]).release().ptr());
  }
  return nb::borrow<nb::tuple>(tuple);
}

Path path_of(const Leaf& leaf) {
  Path path;
  path.reserve(leaf.path.size());
  for (const nb::object& element : leaf.path) path.push_back(to_path_element(element));
  return path;
}

void for_each_leaf(nb::handle mapping, FlatteningRules rules, LeafVisitor& visitor) {
  Flattening(rules, visitor).walk_mapping(mapping);
}

bool old_rules_differ(nb::handle mapping) {
  SplitComparison comparison;
  for_each_leaf(mapping, FlatteningRules::kTorch23, comparison);
  return comparison.differs();
}

bool is_builtin_leaf(nb::handle value) {
  const std::array types = {&PyLong_Type,  &PyFloat_Type,   &PyBool_Type,  &PyUnicode_Type,
                            &PyBytes_Type, &PyComplex_Type, &PyTuple_Type, &PySet_Type};
  return value.is_none() || std::find(types.begin(), types.end(), Py_TYPE(value.ptr())) != types.end();
}

void bind_flattening(nb::module_& module) {
  nb::enum_<FlatteningRules>(module, "FlatteningRules")
      .value("TORCH_2_4", FlatteningRules::kTorch24)
      .value("TORCH_2_3", FlatteningRules::kTorch23)
      .value("TOP_LEVEL", FlatteningRules::kTopLevel);
  module.def("flatten", [](nb::handle state_dict, FlatteningRules rules, const nb::callable& make_leaf) {
    LeafList list(make_leaf);
    for_each_leaf(state_dict, rules, list);
    return list.leaves();
  });
  module.def("old_rules_differ", old_rules_differ);
  module.def("refuse_equal_texts", [](nb::handle mapping) {
    TextCheck check;
    for_each_leaf(mapping, FlatteningRules::kTorch24, check);
  });
}

}  // namespace cairn::python
