// BrokenStore: a store of a run that is gone.
#pragma once

#include <cairn/managed_run.h>
#include <cairn/result.h>

#include <optional>
#include <string>
#include <vector>

namespace cairn::run {

class BrokenStore : public RunStore {
 public:
  Result<void> set(const std::string&, const std::string&) override { return broken(); }
  Result<std::optional<std::vector<std::string>>> get(const std::vector<std::string>&) override { return broken(); }
  Result<void> remove(const std::string&) override { return broken(); }

 private:
  static Error broken() { return {ErrorCode::kUnavailable, "the store is gone"}; }
};

}  // namespace cairn::run
