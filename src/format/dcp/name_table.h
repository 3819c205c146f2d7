// NameTable: numbers for repeated names, fast when the names recur in the order of their first occurrence.
//
// One thread at a time. Keeps views: the caller's text must outlive the table. Linear time: a long name is compared and
// hashed once for each place of the text, however often the place is looked up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/seeded_hash.h"

namespace cairn::dcp {

class NameTable {
 public:
  // Names are numbered from 0.
  std::uint32_t number_of(std::string_view name) {
    return name.size() <= kShortBytesMax ? compared(name) : known_by_place(name);
  }
  std::string_view operator[](std::uint32_t number) const { return names_[number]; }

 private:
  static constexpr std::size_t kShortBytesMax = 256;

  std::uint32_t compared(std::string_view name) {
    const std::size_t next = last_ + 1 < names_.size() ? last_ + 1 : 0;
    for (const std::size_t guess : {next, last_}) {
      if (guess < names_.size() && names_[guess] == name) {
        last_ = guess;
        return static_cast<std::uint32_t>(guess);
      }
    }
    const auto [entry, is_new] = numbers_.try_emplace(name, static_cast<std::uint32_t>(names_.size()));
    if (is_new) names_.push_back(name);
    last_ = entry->second;
    return entry->second;
  }

  [[gnu::noinline]] std::uint32_t known_by_place(std::string_view name) {
    const auto place = reinterpret_cast<std::uintptr_t>(name.data());  // overlapping texts begin at different places
    const auto known = places_.find(place);
    if (known != places_.end()) return known->second;
    const std::uint32_t number = compared(name);
    places_.emplace(place, number);
    return number;
  }

  std::vector<std::string_view> names_;
  std::unordered_map<std::string_view, std::uint32_t, SeededHash> numbers_;
  std::unordered_map<std::uintptr_t, std::uint32_t, SeededHash> places_;  // of long names
  std::size_t last_ = 0;
};

}  // namespace cairn::dcp
