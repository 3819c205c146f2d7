#include "values.h"

#include <cairn/checkpoint.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "bound.h"
#include "errors.h"
#include "key_hashes.h"
#include "new_reference.h"
#include "text.h"

namespace cairn::python {
namespace {

// Deeper nests are left to Python's pickle, which has its own limit.
constexpr int kDepthMax = 100;

bool is_exactly(nb::handle object, nb::handle type) { return object.type().is(type); }

// Member `name` of an imported module. If the module is not imported, no object of its types can exist.
nb::object imported(const char* module, const char* name) {
  const nb::object loaded = nb::borrow(PyImport_GetModuleDict());
  PyObject* found = PyDict_GetItemString(loaded.ptr(), module);
  return found == nullptr ? nb::object() : nb::object(nb::borrow(found).attr(name));
}

// Pickle's LONG: the shortest two's complement.
BigInt to_big_int(nb::handle number) {
  const auto bits = nb::cast<std::size_t>(number.attr("bit_length")());
  std::size_t size = bits / 8 + 1;
  const nb::object bytes = number.attr("to_bytes")(size, "little", nb::arg("signed") = true);
  BigInt result{std::string(nb::cast<nb::bytes>(bytes).c_str(), size)};
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(result.data[i]); };
  if (size > 1 && at(size - 1) == 0xff && (at(size - 2) & 0x80) != 0) result.data.pop_back();
  return result;
}

// Builds a Value. All functions return nullopt for an object that is not plain.
class ValueBuilder {
 public:
  std::optional<Value> build(nb::handle object, int depth) {
    if (auto scalar = build_scalar(object)) return scalar;
    if (depth == kDepthMax) return std::nullopt;
    PyObject* const pointer = object.ptr();
    if (PyList_CheckExact(pointer)) return first_time(object) ? build_items<List>(object, depth) : std::nullopt;
    if (PyTuple_CheckExact(pointer)) return build_items<Tuple>(object, depth);
    if (is_exactly(object, nb::handle(reinterpret_cast<PyObject*>(&PySet_Type)))) {
      return first_time(object) ? build_items<Set>(object, depth) : std::nullopt;
    }
    if (PyDict_CheckExact(pointer)) return first_time(object) ? build_dict(object, false, depth) : std::nullopt;
    if (const nb::object type = imported("collections", "OrderedDict"); type.is_valid() && is_exactly(object, type)) {
      return first_time(object) ? build_dict(object, true, depth) : std::nullopt;
    }
    return build_array(object);
  }

 private:
  static std::optional<Value> build_scalar(nb::handle object) {
    PyObject* const pointer = object.ptr();
    if (object.is_none()) return Value(None{});
    if (PyBool_Check(pointer)) return Value(pointer == Py_True);
    if (PyLong_CheckExact(pointer)) {
      int overflow = 0;
      const long long number = PyLong_AsLongLongAndOverflow(pointer, &overflow);
      return overflow != 0 ? Value(to_big_int(object)) : Value(std::int64_t{number});
    }
    if (PyFloat_CheckExact(pointer)) return Value(PyFloat_AsDouble(pointer));
    if (PyUnicode_CheckExact(pointer)) return Value(to_utf8(object));
    if (PyBytes_CheckExact(pointer)) {
      char* data = nullptr;
      Py_ssize_t size = 0;
      if (PyBytes_AsStringAndSize(pointer, &data, &size) != 0) throw nb::python_error();
      return Value(Bytes{std::string(data, static_cast<std::size_t>(size))});
    }
    if (PyComplex_CheckExact(pointer)) {
      return Value(Complex{PyComplex_RealAsDouble(pointer), PyComplex_ImagAsDouble(pointer)});
    }
    return std::nullopt;
  }

  bool first_time(nb::handle container) { return seen_.insert(container.ptr()).second; }

  // Python's order of the texts of a set differs from process to process: the ranks of a save compare their bytes.
  static void sort_texts(std::vector<Value>& members) {
    const auto is_text = [](const Value& member) { return member.get_if<std::string>() != nullptr; };
    if (!std::ranges::all_of(members, is_text)) return;
    std::ranges::sort(members, {}, [](const Value& member) { return std::string_view(*member.get_if<std::string>()); });
  }

  template <typename Container>
  std::optional<Value> build_items(nb::handle iterable, int depth) {
    Container container;
    for (const nb::handle item : nb::iter(iterable)) {
      std::optional<Value> value = build(item, depth + 1);
      if (!value) return std::nullopt;
      container.items.push_back(std::move(*value));
    }
    if constexpr (std::is_same_v<Container, Set>) sort_texts(container.items);
    return Value(std::move(container));
  }

  std::optional<Value> build_dict(nb::handle dict, bool ordered, int depth) {
    Dict result;
    result.ordered = ordered;
    const nb::object items = nb::borrow(dict.attr("items")());
    for (const nb::handle item : nb::iter(items)) {
      std::optional<Value> key = build(item[0], depth + 1);
      if (!key) return std::nullopt;
      std::optional<Value> value = build(item[1], depth + 1);
      if (!value) return std::nullopt;
      result.items.emplace_back(std::move(*key), std::move(*value));
    }
    // An OrderedDict may carry attributes of its own.
    if (ordered && PyObject_IsTrue(nb::object(dict.attr("__dict__")).ptr()) != 0) return std::nullopt;
    return Value(std::move(result));
  }

  std::optional<Value> build_array(nb::handle object) {
    const nb::object array_type = imported("numpy", "ndarray");
    if (!array_type.is_valid()) return std::nullopt;
    const bool is_array = is_exactly(object, array_type);
    if (!is_array && !nb::isinstance(object, imported("numpy", "generic"))) return std::nullopt;
    const nb::object dtype = nb::borrow(object.attr("dtype"));
    if (!is_array && !dtype.attr("type").is(object.type())) return std::nullopt;
    if (!nb::cast<bool>(dtype.attr("isnative")) || !dtype.attr("metadata").is_none()) return std::nullopt;
    const auto kind = to_utf8(dtype.attr("kind"));
    if (kind.find_first_of("biufc") == std::string::npos) return std::nullopt;
    const std::optional<DType> plain = dtype_from_name(to_utf8(dtype.attr("name")));
    if (!plain) return std::nullopt;
    if (is_array && (!nb::cast<bool>(object.attr("flags").attr("c_contiguous")) || !first_time(object)))
      return std::nullopt;
    Array array;
    array.kind = is_array ? Array::Kind::kNumpyArray : Array::Kind::kNumpyScalar;
    array.dtype = *plain;
    array.shape = to_extents(object.attr("shape"));
    const auto bytes = nb::cast<nb::bytes>(object.attr("tobytes")());
    array.data.assign(bytes.c_str(), bytes.size());
    return Value(std::move(array));
  }

  std::unordered_set<PyObject*> seen_;  // containers: a Value can't express that a container occurs twice
};

bool holds_tensor(const Value& value) {
  std::vector<const Value*> open{&value};  // no recursion: the input decides the depth
  const auto push = [&open](const std::vector<Value>& items) {
    for (const Value& item : items) open.push_back(&item);
  };
  while (!open.empty()) {
    const Value& next = *open.back();
    open.pop_back();
    if (const auto* array = next.get_if<Array>(); array != nullptr && array->kind == Array::Kind::kTensor) return true;
    if (const auto* list = next.get_if<List>()) push(list->items);
    if (const auto* tuple = next.get_if<Tuple>()) push(tuple->items);
    if (const auto* set = next.get_if<Set>()) push(set->items);
    if (const auto* dict = next.get_if<Dict>()) {
      for (const auto& [key, item] : dict->items) {
        open.push_back(&key);
        open.push_back(&item);
      }
    }
    if (const Object* object = next.object()) {
      open.insert(open.end(), {&object->arguments, &object->state, &object->items});
    }
  }
  return false;
}

// Thrown by ObjectBuilder if `make_object` can't make an object of the class.
struct ForeignClass {
  std::string name;
};

// Makes the Python object of a Value; parts with equal identities become a single object. The decoders bound the
// nesting of Values, and thus the recursion.
class ObjectBuilder {
 public:
  ObjectBuilder(nb::handle make_object, std::string_view tensors) : make_object_(make_object), tensors_(tensors) {}

  nb::object build(const Value& value) {
    if (value.identity() == 0) return build_anew(value);
    nb::object& built = built_[value.identity()];  // the reference stays valid while the map grows
    if (!built.is_valid()) built = build_anew(value);
    return built;
  }

 private:
  nb::object build_anew(const Value& value) {
    return std::visit([this](const auto& alternative) { return build_one(alternative); }, value.variant());
  }

  // The key of a dict, or a member of a set. No pickler writes a key without a hash. But a tensor, which has a hash,
  // may become an array, which has none.
  nb::object build_key(const Value& value) {
    nb::object key = build(value);
    if (PyObject_Hash(key.ptr()) != -1) return key;
    PyErr_Clear();
    throw Error(holds_tensor(value) ? ErrorCode::kUnsupported : ErrorCode::kCorrupt,
                "a dict or set with a key that can't be hashed")
        .actual(to_string(value));
  }

  nb::object build_one(None) { return nb::none(); }
  nb::object build_one(bool flag) { return nb::bool_(flag); }
  nb::object build_one(std::int64_t number) { return nb::int_(number); }
  nb::object build_one(double number) { return nb::float_(number); }
  nb::object build_one(const std::string& text) { return to_str(text); }
  nb::object build_one(const SharedText& text) {
    nb::object& built = texts_[text.get()];
    if (!built.is_valid()) built = to_str(*text);
    return built;
  }
  nb::object build_one(const Bytes& bytes) { return nb::bytes(bytes.data.data(), bytes.data.size()); }
  nb::object build_one(const BigInt& number) {
    const nb::handle type(reinterpret_cast<PyObject*>(&PyLong_Type));
    const nb::bytes bytes(number.data.data(), number.data.size());
    return type.attr("from_bytes")(bytes, "little", nb::arg("signed") = true);
  }
  nb::object build_one(const Complex& number) { return checked(PyComplex_FromDoubles(number.real, number.imaginary)); }
  nb::object build_one(const List& list) { return build_list(list.items); }
  nb::object build_one(const Tuple& tuple) { return checked(PyList_AsTuple(build_list(tuple.items).ptr())); }
  nb::object build_one(const Set& set) {
    nb::list members;
    for (const nb::object& member : build_keys(set.items, [](const Value& item) { return &item; })) {
      members.append(member);
    }
    return checked(PySet_New(members.ptr()));
  }
  nb::object build_one(const Dict& dict) {
    nb::object result =
        dict.ordered ? nb::module_::import_("collections").attr("OrderedDict")() : nb::object(nb::dict());
    const std::vector<nb::object> keys = build_keys(dict.items, [](const auto& item) { return &item.first; });
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const nb::object value = build(dict.items[i].second);
      if (PyObject_SetItem(result.ptr(), keys[i].ptr(), value.ptr()) != 0) throw nb::python_error();
    }
    return result;
  }
  nb::object build_one(const std::unique_ptr<Array>& array) { return build_array(*array); }
  nb::object build_one(const SharedArray& array) {
    nb::object& built = arrays_[array.get()];
    if (!built.is_valid()) built = build_array(*array);
    return built;
  }
  nb::object build_array(const Array& array) {
    const nb::object make = nb::module_::import_("cairn.arrays").attr("from_bytes");
    const nb::bytes bytes(array.data.data(), array.data.size());
    return make(to_str(name_of(array.dtype)), from_extents(array.shape.data(), array.shape.size()), bytes,
                array.kind == Array::Kind::kNumpyScalar,
                to_str(array.kind == Array::Kind::kTensor ? tensors_ : "numpy"));
  }
  nb::object build_one(const std::unique_ptr<Object>& object) {
    const nb::object arguments = build(object->arguments);
    const nb::object items = build(object->items);
    const nb::object state = build(object->state);
    nb::object made =
        make_object_(to_str(object->module), to_str(object->name), object->by_new, arguments, state, items);
    if (made.ptr() == Py_NotImplemented) throw ForeignClass{object->qualified_name()};
    return made;
  }

  nb::object build_list(const std::vector<Value>& items) {
    nb::list list;
    for (const Value& item : items) list.append(build(item));
    return list;
  }
  // The keys of a dict, or the members of a set. `key_of` returns a pointer to the key of an item.
  template <typename Items, typename KeyOf>
  std::vector<nb::object> build_keys(const Items& items, const KeyOf& key_of) {
    std::vector<nb::object> keys;
    keys.reserve(items.size());
    for (const auto& item : items) keys.push_back(build_key(*key_of(item)));
    check_key_hashes(keys);
    return keys;
  }

  nb::handle make_object_;
  std::string tensors_;
  std::unordered_map<std::uint64_t, nb::object> built_;  // by identity
  std::unordered_map<const std::string*, nb::object> texts_;
  std::unordered_map<const Array*, nb::object> arrays_;
};

Value decode(const nb::bytes& payload, TensorForm tensors = TensorForm::kElements) {
  const std::span bytes(payload.c_str(), payload.size());
  return unwrap(decode_value(std::as_bytes(bytes), tensors));
}

// (object, ""), or (None, name of a class that make_object does not make). make_object is also called for tensors.
nb::tuple make_value(const Value& value, const nb::object& make_object) {
  try {
    return nb::make_tuple(from_value(value, make_object), to_str(""));
  } catch (const ForeignClass& unknown) {
    return nb::make_tuple(nb::none(), to_str(unknown.name));
  }
}

// (object, ""), or (None, name of a class that is neither plain nor made by make_object). Tensors are left to torch.
nb::tuple decode_plain(const nb::bytes& payload, const nb::object& make_object) {
  const Value value = decode(payload);
  const bool has_tensor = holds_tensor(value);
  if (!has_tensor) return make_value(value, make_object);
  if (!first_unknown_class(value).empty()) {
    nb::tuple made = make_value(value, make_object);
    if (!to_utf8(made[1]).empty()) return made;
  }
  return nb::make_tuple(nb::none(), to_str("torch.Tensor"));
}

}  // namespace

std::optional<Value> to_value(nb::handle object) { return ValueBuilder().build(object, 0); }

nb::object from_value(const Value& value, nb::handle make_object, std::string_view tensors) {
  return ObjectBuilder(make_object, tensors).build(value);
}

std::string first_foreign(const Value& value) {
  std::string name = first_unknown_class(value);
  return name.empty() && holds_tensor(value) ? "torch.Tensor" : name;
}

void bind_values(nb::module_& module) {
  module.def(
      "check_key_hashes",
      [](const nb::list& keys) {
        std::vector<nb::object> held;
        held.reserve(nb::len(keys));
        for (const nb::handle key : keys) held.push_back(nb::borrow(key));
        check_key_hashes(held);
      },
      nb::arg());
  module.def("decode_plain", decode_plain, nb::arg("payload"), nb::arg("make_object"));
  module.def(
      "decode_described",
      [](const nb::bytes& payload, const nb::object& make_object) {
        return make_value(decode(payload, TensorForm::kDescription), make_object);
      },
      nb::arg("payload"), nb::arg("make_object"));
  module.def(
      "decode_inert",
      [](const nb::bytes& payload, const nb::object& make_object, const nb::str& tensors) {
        return from_value(decode(payload), make_object, to_utf8(tensors));
      },
      nb::arg("payload"), nb::arg("make_object"), nb::arg("tensors"));
  module.def(
      "encode_plain",
      [](const nb::object& object) -> nb::object {
        const std::optional<Value> value = to_value(object);
        if (!value) return nb::none();
        const std::string archive = unwrap(encode_value(*value));
        return nb::bytes(archive.data(), archive.size());
      },
      nb::arg("value").none());
}

}  // namespace cairn::python
