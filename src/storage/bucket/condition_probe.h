// The conditions that a store keeps, found out by writes: a store without conditional writes takes them as writes
// without a condition, so that two saves could both commit.
#pragma once

#include <cairn/result.h>

#include <string>
#include <string_view>

#include "storage/bucket/object_store.h"

namespace cairn::storage {

struct StoreConditions {
  bool of_writes = false;    // If-None-Match: * and If-Match of a write
  bool of_removals = false;  // If-Match of a removal
};

// Writes an object of a random name that begins with `prefix`, and removes it. Thread-safe. An error is that of a
// request, and says nothing about conditions.
Result<StoreConditions> probe_conditions(ObjectStore& store, std::string_view prefix);

// As probe_conditions(), once in a process for each `bucket`, a text that names the store and the bucket. An error is
// not kept. Two threads may both ask the store.
Result<StoreConditions> known_conditions(ObjectStore& store, std::string_view bucket, std::string_view prefix);

// kUnsupported, with the way out, if the store does not keep the conditions of writes.
Result<void> check_conditions(const StoreConditions& conditions, std::string_view bucket);

}  // namespace cairn::storage
