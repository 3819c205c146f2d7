#include "save/rank_differences.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>

#include "checkpoint/listed_keys.h"
#include "core/attempt.h"
#include "core/mixed_number.h"
#include "core/sip_hash.h"
#include "format/manifest/varint.h"
#include "os/process_state.h"

namespace cairn::checkpointer {
namespace {

using data_file::ItemSource;

// Equal on all ranks. A state with chosen keys can at most hide its own differences.
constexpr SipKey kKeyHash{0x636169726e2d6b65, 0x792d6469666665};

struct NotedDifferences {
  bool are_noted = false;

  void in_child() { are_noted = false; }
};

os::ProcessState<NotedDifferences>& noted_differences = os::ProcessState<NotedDifferences>::instance();

std::uint64_t salt_of(const ItemSource& item) {
  SipHash hash(kKeyHash);
  hash.add(item.entry->fqn);
  hash.add(static_cast<std::uint64_t>(item.kind));
  return hash.finish();
}

// Of an item and its key. An item that is not compared has the hash of its key alone: its tensor has moved to a device
// since the plan.
std::uint64_t hash_of(std::optional<std::uint32_t> digest, std::uint64_t salt) {
  return mixed_number(salt + (digest ? std::uint64_t{1} << 32 | *digest : 0));
}

std::uint64_t hash_of(const ItemSource& item, std::uint64_t salt) {
  return hash_of(save_plan::content_digest(item), salt);
}

// Whether the key is that of a cairn.PerRank: a key of one rank would end the comparison of its part.
bool is_of_one_rank(std::string_view fqn) { return fqn.find(".__rank_") != std::string_view::npos; }

std::size_t part_of(const Entry& entry, std::size_t count) {
  const std::string* const name = entry.path.empty() ? nullptr : std::get_if<std::string>(&entry.path.front());
  const std::string_view fqn = entry.fqn;
  SipHash hash(kKeyHash);
  hash.add(name != nullptr ? std::string_view(*name) : fqn.substr(0, fqn.find('.')));
  return hash.finish() % count;
}

// For each watched item of the sets: salt, hash, and the key unless the coordinator has the key, too.
std::string encode_hashes(std::span<const ItemSource> items, std::span<const WatchedItem> watched,
                          const DifferentSets& sets) {
  std::string message;
  for (const WatchedItem& item : watched) {
    if (!sets[item.set]) continue;
    manifest::append_fixed(message, item.salt);
    manifest::append_fixed(message, hash_of(items[item.index], item.salt));
    manifest::append_text(message, item.set == 0 ? std::string_view() : items[item.index].entry->fqn);
  }
  return message;
}

// The hashes of all ranks, at the coordinator.
class HashComparison {
 public:
  HashComparison(std::span<const ItemSource> items, std::span<const WatchedItem> watched) {
    for (const WatchedItem& item : watched) {
      if (item.set != 0) continue;
      by_salt_.emplace(item.salt, keys_.size());
      keys_.push_back({items[item.index].entry->fqn, std::nullopt, false});
    }
  }

  Result<void> add(const std::string& message) {
    manifest::CodedReader reader(message);
    while (reader.left() > 0) {
      CAIRN_TRY_ASSIGN(const auto salt, reader.fixed<std::uint64_t>());
      CAIRN_TRY_ASSIGN(const auto hash, reader.fixed<std::uint64_t>());
      CAIRN_TRY_ASSIGN(const std::string_view name, reader.counted_text());
      const auto [at, is_new] = by_salt_.emplace(salt, keys_.size());
      if (is_new) keys_.push_back({std::string(name), std::nullopt, false});
      Key& key = keys_[at->second];
      if (!key.hash) key.hash = hash;
      key.differs = key.differs || *key.hash != hash;
    }
    return {};
  }

  save_plan::DifferentKeys finish() const {
    save_plan::DifferentKeys different;
    for (const Key& key : keys_) {
      if (key.differs) different.add(key.name);
    }
    return different;
  }

 private:
  struct Key {
    std::string name;
    std::optional<std::uint64_t> hash;  // of the first rank that has sent one
    bool differs = false;
  };
  std::vector<Key> keys_;
  std::unordered_map<std::uint64_t, std::size_t> by_salt_;  // index into keys_
};

Result<save_plan::DifferentKeys> compare_hashes(std::span<const ItemSource> items, std::span<const WatchedItem> watched,
                                                std::span<const std::string> messages) {
  HashComparison comparison(items, watched);
  for (const std::string& message : messages) CAIRN_TRY(comparison.add(message));
  return comparison.finish();
}

std::optional<std::string> warning_of(const save_plan::DifferentKeys& different) {
  if (different.count == 0) return std::nullopt;
  return "the ranks have different values under " + listed_keys(different.named, different.count) +
         ", and the checkpoint keeps one rank's value of each. Wrap a value that belongs to its rank in "
         "cairn.PerRank(value), or give all ranks the same value (docs/guide/per-rank-values.md). Warned once per job";
}

std::int64_t number_of(std::uint64_t bits) { return std::bit_cast<std::int64_t>(bits); }

}  // namespace

Result<std::vector<WatchedItem>> watch_items(std::span<const ItemSource> items,
                                             std::span<const save_plan::CommonItem> common) {
  std::vector<WatchedItem> watched;
  watched.reserve(common.size());
  for (const auto& [index, set] : common) {
    if (index >= items.size()) return Error(ErrorCode::kCorrupt, "this rank lacks an item that several ranks have");
    if (save_plan::is_watched(items[index])) watched.push_back({index, salt_of(items[index]), set});
  }
  return watched;
}

ContentSums content_sums(std::span<const ItemSource> items, std::span<const WatchedItem> watched) {
  ContentSums sums;
  for (const WatchedItem& item : watched) {
    sums[item.set] = sums[item.set].value_or(0) + hash_of(items[item.index], item.salt);
  }
  return sums;
}

Result<std::optional<std::string>> find_differences(coordination::Ranks& ranks, std::span<const ItemSource> items,
                                                    std::span<const WatchedItem> watched,
                                                    const DifferentSets& different_sets) {
  // The remaining ranks wait for this rank in the next step of the save: a failure here only shortens the warning.
  const auto mine = attempt([&]() -> Result<std::string> { return encode_hashes(items, watched, different_sets); });
  CAIRN_TRY_ASSIGN(const std::vector<std::string> messages, ranks.gather(mine ? *mine : std::string()));
  if (!ranks.is_coordinator()) return std::optional<std::string>();
  const auto different = attempt([&] { return compare_hashes(items, watched, messages); });
  if (different) return warning_of(*different);
  return std::optional<std::string>(std::string("the ranks have different values under common keys; ") +
                                    different.error().what());
}

Result<std::vector<std::string>> take_all_contents(std::vector<std::string>& local_plans) {
  std::vector<std::string> contents;
  for (std::string& message : local_plans) {
    CAIRN_TRY_ASSIGN(std::string of_rank, save_plan::take_contents(message));
    contents.push_back(std::move(of_rank));
  }
  return contents;
}

Result<PlannedComparison> compare_planned(std::span<const plan::LocalPlan> plans,
                                          std::span<const std::string> contents) {
  if (plans.size() < 2 || are_differences_noted()) return PlannedComparison();
  CAIRN_TRY_ASSIGN(save_plan::SharedContent common, save_plan::compare_contents(plans, contents));
  PlannedComparison compared;
  compared.warning = warning_of(common.different);
  compared.watched = std::move(common.common);
  return compared;
}

bool are_differences_noted() {
  return noted_differences.use([](const NotedDifferences& it) { return it.are_noted; });
}

bool note_differences() {
  return !noted_differences.use([](NotedDifferences& it) { return std::exchange(it.are_noted, true); });
}

void forget_differences() {
  noted_differences.use([](NotedDifferences& it) { it.are_noted = false; });
}

ContentParts::ContentParts(std::span<const ItemSource> items) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!save_plan::is_watched(items[i]) || is_of_one_rank(items[i].entry->fqn)) continue;
    const std::optional<std::uint32_t> digest = save_plan::content_digest(items[i]);
    if (!digest) continue;
    Part& part = parts_[part_of(*items[i].entry, parts_.size())];
    const WatchedItem item{static_cast<std::uint32_t>(i), salt_of(items[i]), 0};
    part.keys += mixed_number(item.salt);
    part.content += hash_of(digest, item.salt);
    part.items.push_back(item);
  }
}

void ContentParts::append_to(std::vector<std::int64_t>& numbers) const {
  for (const Part& part : parts_) {
    for (const std::uint64_t sum : {part.keys, part.content}) {
      numbers.push_back(number_of(sum));
      numbers.push_back(~number_of(sum));
    }
  }
}

ContentParts::Common ContentParts::common_of(std::span<const std::int64_t> smallest) const {
  Common common;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const std::span<const std::int64_t> numbers = smallest.subspan(4 * i, 4);
    const bool has_equal_keys = numbers[0] == ~numbers[1];
    if (!has_equal_keys) continue;
    if (numbers[2] != ~numbers[3]) common.different.set(0);
    common.watched.insert(common.watched.end(), parts_[i].items.begin(), parts_[i].items.end());
  }
  std::ranges::sort(common.watched, {}, &WatchedItem::index);
  return common;
}

}  // namespace cairn::checkpointer
