// Text and paths between Python and the engine: bytes of UTF-8 in which lone surrogates are kept, as pickle keeps them.
#pragma once

#include <nanobind/nanobind.h>

#include <cairn/state_dict.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace nb = nanobind;

namespace cairn::python {

nb::object to_str(std::string_view text);
// `text` is a str.
std::string to_utf8(nb::handle text);

// A path as os.fsencode gives it. ValueError for one with a zero byte.
std::filesystem::path to_filesystem_path(const nb::bytes& encoded);

// A str (a key of a mapping) or int (a position in a list). TypeError for anything else.
PathElement to_path_element(nb::handle element);
// A tuple of them. TypeError for anything else.
Path to_path(nb::handle tuple);
nb::tuple from_path(const Path& path);

Extents to_extents(nb::handle sequence_of_int);
nb::tuple from_extents(const std::int64_t* numbers, std::size_t count);

}  // namespace cairn::python
