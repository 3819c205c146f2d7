// 1. An object of a new name is written on the condition that the name is free.
// 2. A second such write must be refused.
// 3. A write on the condition of the first tag replaces the object, which then has a second tag.
// 4. A second write on the condition of the first tag must be refused.
// 5. The object is removed, also after a failure.
#include "storage/bucket/condition_trial.h"

#include <random>
#include <span>
#include <string_view>

#include "storage/storage.h"

namespace cairn::storage {
namespace {

std::string random_name() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::random_device random;
  std::string name{kConditionTrialPrefix};
  for (int i = 0; i < 16; ++i) name += kDigits[random() % kDigits.size()];
  return name;
}

using OutcomeKind = WriteOutcome::Kind;

Result<WriteOutcome> write_text(ObjectStore& store, const std::string& key, std::string_view text,
                                const WriteCondition& condition) {
  CAIRN_TRY_ASSIGN(WriteOutcome outcome, store.write(key, std::as_bytes(std::span(text)), condition));
  // A lost answer leaves open which of the tries was refused.
  if (outcome.kind == OutcomeKind::kUnknown || outcome.answer_was_lost) {
    return outcome.why.value_or(Error(ErrorCode::kUnavailable, "an answer of the store was lost").file(key));
  }
  return outcome;
}

Result<bool> try_conditions(ObjectStore& store, const std::string& key) {
  CAIRN_TRY_ASSIGN(const WriteOutcome first, write_text(store, key, "1", WriteCondition::absent()));  // (1)
  if (first.kind != OutcomeKind::kWritten) return false;
  CAIRN_TRY_ASSIGN(const WriteOutcome again, write_text(store, key, "2", WriteCondition::absent()));  // (2)
  if (again.kind != OutcomeKind::kRefused) return false;
  CAIRN_TRY_ASSIGN(const WriteOutcome next, write_text(store, key, "3", WriteCondition::of_tag(first.tag)));  // (3)
  if (next.kind != OutcomeKind::kWritten || next.tag == first.tag) return false;
  CAIRN_TRY_ASSIGN(const WriteOutcome stale, write_text(store, key, "4", WriteCondition::of_tag(first.tag)));  // (4)
  return stale.kind == OutcomeKind::kRefused;
}

}  // namespace

Result<bool> ConditionTrial::keeps_conditions(ObjectStore& store, const std::string& prefix) {
  const std::lock_guard lock(mutex_);
  if (answer_) return *answer_;
  const std::string key = prefix + random_name();
  const Result<bool> answer = try_conditions(store, key);
  const Result<void> removed = store.remove(key);  // (5)
  if (!answer) return answer.error();
  if (!removed) return removed.error();
  answer_ = *answer;
  return *answer;
}

}  // namespace cairn::storage
