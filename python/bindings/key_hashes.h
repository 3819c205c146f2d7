// check_key_hashes: whether Python can make a dict or set of keys in time linear in the number of keys.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <vector>

namespace nb = nanobind;

namespace cairn::python {

// Python seeds the hashes of text and bytes, but not the hashes of numbers and tuples: a file can hold thousands of
// numbers with equal hashes, and each number costs a comparison with all numbers before. Honest keys have equal hashes
// at most in pairs (-1 and -2). kUnsafe if more than a few keys have equal hashes; a Python error if a key can't be
// hashed.
void check_key_hashes(const std::vector<nb::object>& keys);

}  // namespace cairn::python
