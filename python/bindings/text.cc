#include "text.h"

namespace cairn::python {

nb::object to_str(std::string_view text) {
  PyObject* str = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass");
  if (str == nullptr) {  // not written by Python: invalid bytes are escaped
    PyErr_Clear();
    str = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
  }
  if (str == nullptr) throw nb::python_error();
  return nb::steal(str);
}

nb::object to_str_or_none(const std::optional<std::string>& text) {
  return text ? to_str(*text) : nb::object(nb::none());
}

std::string to_utf8(nb::handle text) {
  Py_ssize_t size = 0;
  if (const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size)) return {utf8, static_cast<std::size_t>(size)};
  PyErr_Clear();
  const nb::object bytes = nb::steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogatepass"));
  if (!bytes.is_valid()) throw nb::python_error();
  char* data = nullptr;
  if (PyBytes_AsStringAndSize(bytes.ptr(), &data, &size) != 0) throw nb::python_error();
  return {data, static_cast<std::size_t>(size)};
}

std::filesystem::path to_filesystem_path(const nb::bytes& encoded) {
  std::string path(encoded.c_str(), encoded.size());
  // The system would cut the path at the zero byte, and open a different directory.
  if (path.find('\0') != std::string::npos) throw nb::value_error("a path with a zero byte");
  return path;
}

nb::bytes to_bytes(const std::filesystem::path& path) { return nb::bytes(path.native().data(), path.native().size()); }

PathElement to_path_element(nb::handle element) {
  if (PyUnicode_Check(element.ptr())) return to_utf8(element);
  const long long position = PyLong_AsLongLong(element.ptr());
  if (position == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return std::int64_t{position};
}

Path to_path(nb::handle tuple) {
  if (!PyTuple_Check(tuple.ptr())) throw nb::type_error("a path is a tuple");
  const Py_ssize_t count = PyTuple_Size(tuple.ptr());
  Path path;
  path.reserve(static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) path.push_back(to_path_element(PyTuple_GetItem(tuple.ptr(), i)));
  return path;
}

nb::tuple from_path(const Path& path) {
  nb::list elements;
  for (const PathElement& element : path) {
    if (const auto* key = std::get_if<std::string>(&element)) {
      elements.append(to_str(*key));
    } else {
      elements.append(nb::int_(std::get<std::int64_t>(element)));
    }
  }
  return nb::tuple(elements);
}

Extents to_extents(nb::handle sequence_of_int) {
  // PyTuple_Check() accepts a torch.Size, which PySequence_Tuple() would copy.
  nb::object tuple = nb::borrow(sequence_of_int);
  if (!PyTuple_Check(tuple.ptr())) tuple = nb::steal(PySequence_Tuple(sequence_of_int.ptr()));
  if (!tuple.is_valid()) throw nb::python_error();
  const Py_ssize_t count = PyTuple_Size(tuple.ptr());
  Extents extents(static_cast<std::size_t>(count), 0);
  for (Py_ssize_t i = 0; i < count; ++i) {
    const long long number = PyLong_AsLongLong(PyTuple_GetItem(tuple.ptr(), i));
    if (number == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
    extents[static_cast<std::size_t>(i)] = number;
  }
  return extents;
}

nb::tuple from_extents(const std::int64_t* numbers, std::size_t count) {
  const nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  if (!tuple.is_valid()) throw nb::python_error();
  for (std::size_t i = 0; i < count; ++i) {
    PyObject* number = PyLong_FromLongLong(numbers[i]);
    if (number == nullptr || PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i), number) != 0) {
      throw nb::python_error();
    }
  }
  return nb::borrow<nb::tuple>(tuple);
}

}  // namespace cairn::python
