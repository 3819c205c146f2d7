// FileNumbers: the number of the file of each key of a safetensors model.
#pragma once

#include <cairn/result.h>
#include <cairn/save.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <unordered_map>

#include "core/seeded_hash.h"

namespace cairn::checkpointer {

// Safe to use from several threads. `form` outlives the object.
class FileNumbers {
 public:
  explicit FileNumbers(const SafetensorsForm& form) : numbers_(form.file_numbers.begin(), form.file_numbers.end()) {
    for (const auto& [key, number] : form.file_numbers) max_ = std::max(max_, number);
  }
  // kInvalidArgument if the form names files, but none for `key`.
  Result<std::uint32_t> of(std::string_view key) const {
    if (numbers_.empty()) return 1U;
    const auto found = numbers_.find(key);
    if (found == numbers_.end()) {
      return Error(ErrorCode::kInvalidArgument, "the mapping from keys to files lacks the key").key(key);
    }
    if (found->second == 0) return Error(ErrorCode::kInvalidArgument, "files are numbered from 1 on").key(key);
    return found->second;
  }
  std::uint32_t max() const { return max_; }

 private:
  std::unordered_map<std::string_view, std::uint32_t, SeededHash> numbers_;  // views of the form's keys
  std::uint32_t max_ = 1;
};

}  // namespace cairn::checkpointer
