// Python objects <-> cairn::Value, for the types whose pickle holds no code.
#pragma once

#include <cairn/value.h>
#include <nanobind/nanobind.h>

#include <optional>
#include <string_view>

namespace nb = nanobind;

namespace cairn::python {

// The value of an object made of exactly these types, subclasses excluded: None, bool, int, float, complex, str, bytes,
// list, tuple, set, dict, OrderedDict, and NumPy arrays and scalars of plain dtypes. Nullopt for anything else, for
// containers that occur twice or in themselves (a Value can't say that they are the same), and for nests too deep for a
// Value.
std::optional<Value> to_value(nb::handle object);

// The other way. `make_object(module, name, by_new, arguments, state, items)` makes what an Object describes, of parts
// that have been made already. Where it returns NotImplemented, from_value() throws a type of its own.
// `tensors` is the Form (cairn/arrays.py) that tensors come in; by default no dtype is refused.
nb::object from_value(const Value& value, nb::handle make_object, std::string_view tensors = "integers");

// "" if from_value() gives back what was saved without any help: no unknown class and no tensor in it.
std::string first_foreign(const Value& value);

}  // namespace cairn::python
