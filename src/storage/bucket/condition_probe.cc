// The probe of a store:
//
// 1. A write on condition of absence, of a new name: must be done.
// 2. A second one: must be refused.
// 3. A write on condition of the tag of (1): must be done, and gives a new tag.
// 4. A write on condition of the tag of (1): must be refused.
// 5. A removal on condition of the tag of (1): is refused by a store with conditions of removals.
// 6. The object is removed, also after a failure.
#include "storage/bucket/condition_probe.h"

#include <map>
#include <optional>
#include <random>
#include <span>
#include <utility>

#include "os/process_state.h"

namespace cairn::storage {
namespace {

using Conditions = std::map<std::string, StoreConditions, std::less<>>;
os::ProcessState<Conditions>& conditions_of_stores = os::ProcessState<Conditions>::instance();

std::string probe_name(std::string_view prefix) {
  std::random_device random;
  return std::string(prefix) + ".cairn-probe-" + std::to_string(std::uint64_t{random()} << 32 | random());
}

class ConditionProbe {
 public:
  ConditionProbe(ObjectStore& store, std::string key) : store_(store), key_(std::move(key)) {}

  Result<StoreConditions> run() {
    StoreConditions found;
    CAIRN_TRY_ASSIGN(const std::optional<std::string> first, write("1", WriteCondition::absent()));  // (1)
    if (!first) return found;
    CAIRN_TRY_ASSIGN(const std::optional<std::string> again, write("2", WriteCondition::absent()));  // (2)
    if (again) return found;
    CAIRN_TRY_ASSIGN(const std::optional<std::string> second, write("3", WriteCondition::of_tag(*first)));  // (3)
    if (!second || *second == *first) return found;
    CAIRN_TRY_ASSIGN(const std::optional<std::string> stale, write("4", WriteCondition::of_tag(*first)));  // (4)
    if (stale) return found;
    found.of_writes = true;
    Result<WriteOutcome> removed = store_.remove_if(key_, *first);  // (5)
    if (!removed && removed.error().code() != ErrorCode::kUnsupported) return std::move(removed).error();
    found.of_removals = removed && removed->kind == WriteOutcome::Kind::kRefused;
    return found;
  }

 private:
  // The tag of the written object; nullopt if the store refused the write.
  Result<std::optional<std::string>> write(std::string_view text, const WriteCondition& condition) {
    Result<WriteOutcome> outcome = store_.write(key_, std::as_bytes(std::span(text)), condition);
    if (!outcome) {
      if (outcome.error().code() == ErrorCode::kUnsupported) return std::optional<std::string>();
      return std::move(outcome).error();
    }
    if (outcome->kind == WriteOutcome::Kind::kUnknown) return *std::move(outcome->why);
    if (outcome->kind == WriteOutcome::Kind::kWritten) return std::optional(std::move(outcome->tag));
    if (!outcome->answer_was_lost) return std::optional<std::string>();
    // The refusal may be that of a second try, after the first has written the object.
    CAIRN_TRY_ASSIGN(ObjectStore::Content content, store_.read_whole(key_, 16));
    if (content.bytes != text) return std::optional<std::string>();
    return std::optional(std::move(content.version.tag));
  }

  ObjectStore& store_;
  std::string key_;
};

}  // namespace

Result<StoreConditions> probe_conditions(ObjectStore& store, std::string_view prefix) {
  const std::string key = probe_name(prefix);
  Result<StoreConditions> found = ConditionProbe(store, key).run();
  const Result<void> removed = store.remove(key);  // (6)
  if (!found) return std::move(found).error().while_doing("finding out whether the store keeps conditions");
  CAIRN_TRY(removed);
  return found;
}

Result<StoreConditions> known_conditions(ObjectStore& store, std::string_view bucket, std::string_view prefix) {
  const auto known = conditions_of_stores.use([&](const Conditions& all) {
    const auto it = all.find(bucket);
    return it == all.end() ? std::nullopt : std::optional(it->second);
  });
  if (known) return *known;
  CAIRN_TRY_ASSIGN(const StoreConditions found, probe_conditions(store, prefix));
  conditions_of_stores.use([&](Conditions& all) { all.insert_or_assign(std::string(bucket), found); });
  return found;
}

Result<void> check_conditions(const StoreConditions& conditions, std::string_view bucket) {
  if (conditions.of_writes) return {};
  return Error(ErrorCode::kUnsupported, "the store of '" + std::string(bucket) +
                                            "' does not keep the conditions of writes: two saves could both commit")
      .expected("a store with If-None-Match and If-Match for PUT, as S3, Google Cloud Storage, MinIO or SeaweedFS");
}

}  // namespace cairn::storage
