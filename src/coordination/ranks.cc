#include "coordination/ranks.h"

#include <utility>

#include "format/manifest/outcome.h"

namespace cairn::coordination {
namespace {

// The bytes of all ranks, or the failures of the failed ranks.
Result<std::vector<std::string>> together(const std::vector<std::string>& messages) {
  std::vector<std::string> all;
  std::vector<Error> failures;
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    Result<std::string> outcome = manifest::decode_outcome(messages[rank]);
    if (outcome) {
      all.push_back(std::move(*outcome));
    } else {
      failures.push_back(std::move(outcome).error().rank(static_cast<std::int64_t>(rank)));
    }
  }
  if (!failures.empty()) return Error::of_ranks(std::move(failures));
  return all;
}

}  // namespace

std::string Ranks::tell(const Result<std::string>& outcome) const {
  if (outcome || !outcome.error().causes().empty() || collectives_ == nullptr) return manifest::encode_outcome(outcome);
  return manifest::encode_outcome(Error::of_ranks({Error(outcome.error()).rank(static_cast<std::int64_t>(rank()))}));
}

Result<std::vector<std::string>> Ranks::gather(Result<std::string> mine) {
  if (collectives_ == nullptr) {
    if (!mine) return std::move(mine).error();
    return std::vector<std::string>{std::move(*mine)};
  }
  CAIRN_TRY_ASSIGN(const std::vector<std::string> messages,
                   collectives_->gather(manifest::encode_outcome(mine), coordinator_));
  if (is_coordinator()) return together(messages);
  if (!mine) return std::move(mine).error();
  return std::vector<std::string>();
}

Result<std::string> Ranks::scatter(Result<std::vector<std::string>> all) {
  if (collectives_ == nullptr) {
    if (!all) return std::move(all).error();
    return std::move(all->front());
  }
  std::vector<std::string> messages;
  if (is_coordinator() && all) {
    for (std::string& bytes : *all) messages.push_back(manifest::encode_outcome(std::move(bytes)));
  } else if (is_coordinator()) {
    messages.assign(size(), tell(std::move(all).error()));
  }
  CAIRN_TRY_ASSIGN(const std::string message, collectives_->scatter(std::move(messages), coordinator_));
  return manifest::decode_outcome(message);
}

Result<std::string> Ranks::broadcast(Result<std::string> bytes) {
  if (collectives_ == nullptr) return bytes;
  std::string message = is_coordinator() ? tell(bytes) : std::string();
  CAIRN_TRY_ASSIGN(message, collectives_->broadcast(std::move(message), coordinator_));
  return manifest::decode_outcome(message);
}

Result<std::vector<std::int64_t>> Ranks::smallest(std::vector<std::int64_t> mine) {
  if (collectives_ == nullptr) return mine;
  return collectives_->smallest(std::move(mine));
}

Result<std::vector<std::string>> Ranks::all_gather(Result<std::string> mine) {
  if (collectives_ == nullptr) return gather(std::move(mine));
  CAIRN_TRY_ASSIGN(const std::vector<std::string> messages, collectives_->all_gather(manifest::encode_outcome(mine)));
  return together(messages);
}

}  // namespace cairn::coordination
