// KeyNumbers: numbers the keys of many ranks, from 0 on, in the order of their first occurrence.
//
// Ranks mostly list equal keys in equal order: number_of() first tries the key that followed the previous key last
// time, and then a table. One thread at a time.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cairn::plan {

class KeyNumbers {
 public:
  struct Found {
    std::uint32_t number;
    bool is_new;
  };

  // The next name is the first name of a rank.
  void begin_rank() { previous_ = kNone; }

  // `keep` is called with a new name, and returns a view of the name in memory that outlives the object.
  template <typename Keep>
  Found number_of(std::string_view name, Keep&& keep) {
    std::uint32_t& next = previous_ == kNone ? first_ : followers_[previous_];
    bool is_new = false;
    if (next == kNone || !is_same(names_[next], name)) {
      const auto found = numbers_.find(name);
      is_new = found == numbers_.end();
      next = is_new ? static_cast<std::uint32_t>(names_.size()) : found->second;
    }
    previous_ = next;
    if (is_new) {
      names_.push_back(std::forward<Keep>(keep)(name));
      numbers_.emplace(names_.back(), previous_);
      followers_.push_back(kNone);  // may move the element that `next` refers to
    }
    return {previous_, is_new};
  }
  Found number_of(std::string_view name) {
    return number_of(name, [](std::string_view kept) { return kept; });
  }

  // The number of a name that has one.
  std::uint32_t find(std::string_view name) const { return numbers_.at(name); }
  std::string_view name(std::uint32_t number) const { return names_[number]; }

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  static bool is_same(std::string_view a, std::string_view b) {
    return (a.data() == b.data() && a.size() == b.size()) || a == b;
  }

  std::vector<std::string_view> names_;
  std::vector<std::uint32_t> followers_;  // of each key
  std::unordered_map<std::string_view, std::uint32_t> numbers_;
  std::uint32_t first_ = kNone;
  std::uint32_t previous_ = kNone;
};

}  // namespace cairn::plan
