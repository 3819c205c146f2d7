// GlobalTable: the classes and functions that a pickle names, numbered from 0. Equal names have equal numbers.
//
// One thread at a time while the table grows. Keeps views: the pickle's text must outlive the table.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/seeded_hash.h"

namespace cairn::pickle {

struct GlobalName {
  std::string_view module;
  std::string_view name;
  friend bool operator==(const GlobalName&, const GlobalName&) = default;
};

class GlobalTable {
 public:
  std::size_t number_of(const GlobalName& global) {
    const auto [entry, is_new] = numbers_.try_emplace(global, names_.size());
    if (is_new) names_.push_back(global);
    return entry->second;
  }
  const GlobalName& operator[](std::size_t number) const { return names_[number]; }
  std::span<const GlobalName> names() const { return names_; }

 private:
  struct Hash {
    std::size_t operator()(const GlobalName& global) const {
      const SeededHash hash;
      return hash(global.module) * 31 + hash(global.name);
    }
  };
  std::vector<GlobalName> names_;
  std::unordered_map<GlobalName, std::size_t, Hash> numbers_;
};

}  // namespace cairn::pickle
