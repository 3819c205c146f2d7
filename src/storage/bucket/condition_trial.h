// ConditionTrial: whether a store keeps the conditions of writes. Some stores accept a conditional write and ignore its
// condition; two saves would then overwrite each other.
#pragma once

#include <cairn/result.h>

#include <mutex>
#include <optional>
#include <string>

#include "storage/bucket/object_store.h"

namespace cairn::storage {

// The answer for one bucket, which is asked for once. Thread-safe.
class ConditionTrial {
 public:
  // False: the store ignores a condition. The trial writes and removes an object below `prefix`, the begin of keys. A
  // trial that fails is repeated by the next call.
  Result<bool> keeps_conditions(ObjectStore& store, const std::string& prefix);

 private:
  std::mutex mutex_;
  std::optional<bool> answer_;
};

}  // namespace cairn::storage
