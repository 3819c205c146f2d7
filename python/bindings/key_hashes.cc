#include "key_hashes.h"

#include <cairn/result.h>

#include <algorithm>
#include <string>

namespace cairn::python {
namespace {

constexpr std::size_t kEqualMax = 64;

bool has_seeded_hash(nb::handle key) {
  return PyUnicode_CheckExact(key.ptr()) != 0 || PyBytes_CheckExact(key.ptr()) != 0;
}

}  // namespace

void check_key_hashes(const std::vector<nb::object>& keys) {
  if (keys.size() <= kEqualMax) return;
  std::vector<Py_hash_t> hashes;
  for (const nb::object& key : keys) {
    if (has_seeded_hash(key)) continue;
    const Py_hash_t hash = PyObject_Hash(key.ptr());
    if (hash == -1) throw nb::python_error();
    hashes.push_back(hash);
  }
  std::sort(hashes.begin(), hashes.end());
  for (std::size_t last = kEqualMax; last < hashes.size(); ++last) {
    if (hashes[last] != hashes[last - kEqualMax]) continue;
    throw Error(ErrorCode::kUnsafe,
                "a dict or set would take time out of proportion to its size: its keys share a hash")
        .expected("at most " + std::to_string(kEqualMax) + " keys with one hash");
  }
}

}  // namespace cairn::python
