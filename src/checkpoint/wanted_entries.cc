#include "checkpoint/wanted_entries.h"

#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "core/seeded_hash.h"

namespace cairn::checkpointer {

using compact_catalog::WantedKey;

Result<WantedEntries> WantedEntries::find(Checkpoint::Impl& impl, std::span<const WantedKey> keys,
                                          bool with_missing_keys) {
  if (keys.size() == 1) {
    if (auto last = impl.last_entry(keys[0].fqn)) return WantedEntries(std::move(last));
  }
  Result<Catalog> found = impl.metadata->compact().find(keys);
  if (found && (with_missing_keys || found->keys.size() == keys.size())) {
    auto decoded = std::make_shared<const Catalog>(*std::move(found));
    if (keys.size() == 1 && keys[0].all_chunks && !decoded->keys.empty()) impl.keep_last_entry(keys[0].fqn, decoded);
    return WantedEntries(std::move(decoded));
  }
  if (!found) {
    const bool is_damaged = found.error().code() == ErrorCode::kCorrupt || found.error().code() == ErrorCode::kUnsafe;
    if (!is_damaged) return impl.replaced_while_read(std::move(found).error());
    impl.note_damage(found.error());
  }
  const Catalog* whole = nullptr;
  CAIRN_TRY_ASSIGN(whole, impl.whole_catalog());
  return WantedEntries(whole);
}

Result<WantedEntries> WantedEntries::of(Checkpoint::Impl& impl, std::span<const Entry> state, const StoredNames& names,
                                        bool with_missing_keys) {
  if (!impl.metadata) return WantedEntries(&impl.catalog);
  std::vector<WantedKey> keys;
  std::unordered_map<std::string_view, std::size_t, SeededHash> places;
  for (const Entry& entry : state) {
    const std::string* const stored = names.find(entry.fqn);
    if (stored == nullptr) continue;
    const auto [place, is_new] = places.try_emplace(*stored, keys.size());
    if (is_new) keys.push_back({*stored, false, {}});
    WantedKey& key = keys[place->second];
    if (const auto* target = std::get_if<TensorEntry>(&entry.content)) {
      key.boxes.push_back(target->box);
    } else {
      key.all_chunks = true;
    }
  }
  return find(impl, keys, with_missing_keys);
}

Result<WantedEntries> WantedEntries::of_key(Checkpoint::Impl& impl, std::string_view fqn) {
  if (!impl.metadata) return WantedEntries(&impl.catalog);
  const WantedKey key{fqn, true, {}};
  return find(impl, {&key, 1}, true);
}

Result<WantedEntries> WantedEntries::of_keys(Checkpoint::Impl& impl, std::span<const std::string> fqns) {
  if (!impl.metadata) return WantedEntries(&impl.catalog);
  std::vector<WantedKey> keys;
  std::unordered_set<std::string_view, SeededHash> known;
  for (const std::string& fqn : fqns) {
    if (known.insert(fqn).second) keys.push_back({fqn, false, {}});
  }
  return find(impl, keys, true);
}

}  // namespace cairn::checkpointer
