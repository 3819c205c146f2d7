// check_key_hashes: whether a dict or set can be made of these keys in time that is linear in their number.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <vector>

namespace nb = nanobind;

namespace cairn::python {

// Python seeds the hashes of text and bytes, and not those of numbers and tuples: a file can hold thousands of numbers
// with one hash, and each costs a comparison with all before it. Honest keys share a hash in pairs at most (-1 and -2).
// kUnsafe if more than a few keys do; a Python error if a key can't be hashed.
void check_key_hashes(const std::vector<nb::object>& keys);

}  // namespace cairn::python
