// ConversionLosses: what the conversions of dtype during reads have lost, by key. Thread-safe.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "core/conversion_loss.h"

namespace cairn::data_file {

class ConversionLosses {
 public:
  void add(std::string_view key, const ConversionLoss& loss) {
    const std::lock_guard lock(mutex_);
    auto found = by_key_.find(key);
    if (found == by_key_.end()) found = by_key_.emplace(key, ConversionLoss()).first;
    found->second.add(loss);
  }
  // Of the keys that were converted, in the order of their names.
  std::map<std::string, ConversionLoss, std::less<>> by_key() const {
    const std::lock_guard lock(mutex_);
    return by_key_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, ConversionLoss, std::less<>> by_key_;
};

}  // namespace cairn::data_file
