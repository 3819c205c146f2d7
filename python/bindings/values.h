// Python objects <-> cairn::Value, for the types whose pickle holds no code.
#pragma once

#include <cairn/state_dict.h>
#include <nanobind/nanobind.h>

#include <optional>
#include <string_view>

namespace nb = nanobind;

namespace cairn::python {

// The value of an object made of exactly these types, subclasses excluded: None, bool, int, float, complex, str, bytes,
// list, tuple, set, dict, OrderedDict, and NumPy arrays and scalars of plain dtypes. Nullopt for objects of other
// types, for containers that occur twice or inside themselves (a Value can't express equal identity), and for nests too
// deep for a Value.
std::optional<Value> to_value(nb::handle object);

// The inverse of to_value(). `make_object(module, name, by_new, arguments, state, items)` makes the object described by
// an Object, from finished parts. If make_object returns NotImplemented, from_value() throws a type of its own.
// `tensors` is the Form (cairn/arrays.py) of tensors; by default no dtype is refused.
nb::object from_value(const Value& value, nb::handle make_object, std::string_view tensors = "integers");

// The name of the first unknown class in `value`, or "torch.Tensor" if `value` holds a tensor. Empty if from_value()
// can make the object without make_object.
std::string first_foreign(const Value& value);

}  // namespace cairn::python
