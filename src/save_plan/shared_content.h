// Shared content: the content of items that several ranks of a save have under one key. One rank writes such an item,
// so the values of the other ranks are lost if the ranks' values differ.
//
// Every rank sends a digest of each compared item beside its local plan. Compared are values, tensors as `torch.save`
// archives, and whole tensors of at most kComparedTensorBytesMax bytes in memory of the CPU. Not compared are sharded
// tensors, whose ranks hold different boxes, and tensors of devices, whose elements would take a synchronisation.
//
// Pure functions. A digest is for a warning: two contents that differ have equal digests in one of 2^32 cases.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data_file/file_image.h"
#include "plan/local_plan.h"
#include "save_plan/rank_sets.h"

namespace cairn::save_plan {

// The state of torch's generator for the CPU has 5 kB, and a larger limit costs the saves of models on the CPU time.
inline constexpr std::uint64_t kComparedTensorBytesMax = 8192;

// Nullopt for an item that is not compared.
std::optional<std::uint32_t> content_digest(const data_file::ItemSource& item);

// Whether every save compares a compared item, not only the first save of a plan. The exceptions are floating-point
// tensors of more than kWatchedFloatBytesMax bytes: a model on the CPU has many such tensors, and random states and
// positions are integers.
inline constexpr std::uint64_t kWatchedFloatBytesMax = 512;
bool is_watched(const data_file::ItemSource& item);

// Appends the digests of a rank's items to `message`.
void append_contents(std::span<const data_file::ItemSource> items, std::string& message);
// Removes the digests from the end of the message, and returns them, encoded. kCorrupt for a message without digests.
Result<std::string> take_contents(std::string& message);

// Keys whose content differs between ranks.
struct DifferentKeys {
  static constexpr std::size_t kNamedMax = 8;
  std::vector<std::string> named;  // the first of them
  std::size_t count = 0;

  void add(std::string_view key) {
    if (count++ < kNamedMax) named.emplace_back(key);
  }
};

// An item whose key several ranks have.
struct CommonItem {
  std::uint32_t index = 0;
  std::uint32_t set = 0;  // the ranks that have the key, by the number of RankSets

  bool operator==(const CommonItem&) const = default;
};

struct SharedContent {
  DifferentKeys different;
  std::vector<std::vector<CommonItem>> common;  // by rank: of the compared items, those with a numbered set
};

// `contents`: of take_contents(), by rank; `plans` of the same ranks. kCorrupt for digests of no such plans.
Result<SharedContent> compare_contents(std::span<const plan::LocalPlan> plans, std::span<const std::string> contents);

}  // namespace cairn::save_plan
