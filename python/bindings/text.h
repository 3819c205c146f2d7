// Text and paths between Python and the engine: UTF-8 with lone surrogates, as in pickles.
#pragma once

#include <nanobind/nanobind.h>

#include <cairn/state_dict.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace nb = nanobind;

namespace cairn::python {

nb::object to_str(std::string_view text);
// None for nullopt.
nb::object to_str_or_none(const std::optional<std::string>& text);
// `text` is a str.
std::string to_utf8(nb::handle text);

// `encoded` is the result of os.fsencode. ValueError for a path with a zero byte.
std::filesystem::path to_filesystem_path(const nb::bytes& encoded);
// For os.fsdecode.
nb::bytes to_bytes(const std::filesystem::path& path);

// `element` is a str (a key of a mapping) or int (a position in a list). TypeError for other types.
PathElement to_path_element(nb::handle element);
// `tuple` is a tuple of path elements. TypeError for other types.
Path to_path(nb::handle tuple);
nb::tuple from_path(const Path& path);

Extents to_extents(nb::handle sequence_of_int);
nb::tuple from_extents(const std::int64_t* numbers, std::size_t count);

}  // namespace cairn::python
