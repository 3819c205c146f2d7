// How the ranks of a local group exchange messages:
//
// 1. The n-th call of each rank belongs to round n. The first rank opens the round; all later ranks must make an equal
//    call with an equal root.
// 2. A rank gives its messages to the round.
// 3. The rank waits for the messages needed by the call: from the root, from every rank, or none. The call fails if a
//    rank left the group without giving messages to the round: the round can never be complete.
// 4. The rank takes its result. The last rank to take a result removes the round.
// 5. A rank leaves the group when its LocalRank is destroyed or a call fails. Leaving wakes the waiting ranks.
#include <cairn/collectives.h>

#include <fmt/core.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "coordination/call_guard.h"

namespace cairn {
namespace {

using Messages = std::vector<std::string>;

enum class Operation : std::uint8_t { kGather, kScatter, kBroadcast, kAllGather, kBarrier };

struct Call {
  Operation operation;
  std::size_t root = 0;
  bool operator==(const Call&) const = default;
};

std::string text_of(const Call& call) {
  constexpr std::string_view kNames[] = {"gather", "scatter", "broadcast", "all_gather", "barrier"};
  return fmt::format("{} with root {}", kNames[static_cast<std::size_t>(call.operation)], call.root);
}

struct Round {
  Call call;
  std::vector<std::optional<Messages>> given;  // by rank
  std::size_t taken_count = 0;

  bool has_all() const {
    return std::all_of(given.begin(), given.end(), [](const auto& messages) { return messages.has_value(); });
  }
  bool has_all_for(std::size_t rank) const {
    switch (call.operation) {
      case Operation::kGather: return rank != call.root || has_all();
      case Operation::kScatter:
      case Operation::kBroadcast: return given[call.root].has_value();
      case Operation::kAllGather:
      case Operation::kBarrier: return has_all();
    }
    return false;
  }

  // A rank without messages that the waiting ranks need. Only while has_all_for() is false for a rank.
  std::size_t missing() const {
    const bool needs_root = call.operation == Operation::kScatter || call.operation == Operation::kBroadcast;
    if (needs_root) return call.root;
    return static_cast<std::size_t>(std::find(given.begin(), given.end(), std::nullopt) - given.begin());
  }

  Messages first_of_all() const {
    Messages all;
    for (const auto& messages : given) all.push_back(messages->front());
    return all;
  }
  Messages result_for(std::size_t rank) {
    switch (call.operation) {
      case Operation::kGather: return rank == call.root ? first_of_all() : Messages();
      case Operation::kScatter: return {std::move((*given[call.root])[rank])};
      case Operation::kBroadcast: return {given[call.root]->front()};
      case Operation::kAllGather: return first_of_all();
      case Operation::kBarrier: return {};
    }
    return {};
  }
};

// The shared state of the group. Thread-safe.
class Rendezvous {
 public:
  Rendezvous(std::size_t size, std::optional<std::chrono::milliseconds> timeout) : timeout_(timeout), members_(size) {}

  std::size_t size() const { return members_.size(); }

  Result<Messages> call(std::size_t rank, const Call& call, Messages messages) {
    std::unique_lock lock(mutex_);
    const std::uint64_t number = members_[rank].given_count;
    Round& round = rounds_.try_emplace(number, Round{call, decltype(Round::given)(size())}).first->second;  // 1.
    if (round.call != call) {
      return Error(ErrorCode::kInvalidArgument, "the ranks of the group make different calls")
          .rank(static_cast<std::int64_t>(rank))
          .expected(text_of(round.call))
          .actual(text_of(call));
    }
    round.given[rank] = std::move(messages);  // 2.
    ++members_[rank].given_count;
    changed_.notify_all();
    CAIRN_TRY(wait(lock, round, number, rank));  // 3.
    Messages result = round.result_for(rank);    // 4.
    if (++round.taken_count == size()) rounds_.erase(number);
    return result;
  }

  // The rendezvous of some of the ranks: one for equal `ranks`.
  std::shared_ptr<Rendezvous> subgroup(const std::vector<std::size_t>& ranks) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Rendezvous>& found = subgroups_[ranks];
    if (!found) found = std::make_shared<Rendezvous>(ranks.size(), timeout_);
    return found;
  }

  void leave(std::size_t rank, std::string_view reason) {
    const std::lock_guard lock(mutex_);
    if (!members_[rank].left) members_[rank].left = reason;  // 5.
    changed_.notify_all();
  }

 private:
  struct Member {
    std::uint64_t given_count = 0;    // the number of rounds with messages of the rank
    std::optional<std::string> left;  // the reason
  };

  Result<void> wait(std::unique_lock<std::mutex>& lock, const Round& round, std::uint64_t number, std::size_t rank) {
    const auto deadline = std::chrono::steady_clock::now() + timeout_.value_or(std::chrono::milliseconds(0));
    while (true) {
      if (const std::optional<std::size_t> gone = find_gone(number)) {
        return Error(ErrorCode::kUnavailable, "a rank left the group: " + *members_[*gone].left)
            .rank(static_cast<std::int64_t>(*gone));
      }
      if (round.has_all_for(rank)) return {};
      if (!timeout_) {
        changed_.wait(lock);
      } else if (changed_.wait_until(lock, deadline) == std::cv_status::timeout && !round.has_all_for(rank)) {
        return timed_out(round);
      }
    }
  }

  // A rank that has left and will never give messages to the round.
  std::optional<std::size_t> find_gone(std::uint64_t number) const {
    for (std::size_t rank = 0; rank < size(); ++rank) {
      if (members_[rank].left && members_[rank].given_count <= number) return rank;
    }
    return std::nullopt;
  }

  Error timed_out(const Round& round) const {
    return Error(ErrorCode::kUnavailable,
                 fmt::format("{}: a rank sent no message within {} ms", text_of(round.call), timeout_->count()))
        .rank(static_cast<std::int64_t>(round.missing()));
  }

  const std::optional<std::chrono::milliseconds> timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Member> members_;            // by rank
  std::map<std::uint64_t, Round> rounds_;  // the rounds that at least one rank has not finished
  std::map<std::vector<std::size_t>, std::shared_ptr<Rendezvous>> subgroups_;
};

class LocalRank final : public Collectives {
 public:
  LocalRank(std::shared_ptr<Rendezvous> rendezvous, std::size_t rank)
      : rendezvous_(std::move(rendezvous)), rank_(rank), guard_(rendezvous_->size()) {}
  ~LocalRank() override { rendezvous_->leave(rank_, "its object was destroyed"); }
  LocalRank(const LocalRank&) = delete;
  LocalRank& operator=(const LocalRank&) = delete;

  std::size_t rank() const override { return rank_; }
  std::size_t size() const override { return rendezvous_->size(); }

  Result<Messages> gather(std::string bytes, std::size_t root) override {
    return call({Operation::kGather, root}, one(std::move(bytes)));
  }
  Result<std::string> scatter(Messages bytes, std::size_t root) override {
    CAIRN_TRY_ASSIGN(Messages result, call({Operation::kScatter, root}, std::move(bytes)));
    return std::move(result.front());
  }
  Result<std::string> broadcast(std::string bytes, std::size_t root) override {
    CAIRN_TRY_ASSIGN(Messages result, call({Operation::kBroadcast, root}, one(std::move(bytes))));
    return std::move(result.front());
  }
  Result<Messages> all_gather(std::string bytes) override {
    return call({Operation::kAllGather}, one(std::move(bytes)));
  }
  Result<void> barrier() override {
    CAIRN_TRY(call({Operation::kBarrier}, {}));
    return {};
  }
  Result<Collectives*> subgroup(const std::vector<std::size_t>& ranks) override {
    std::unique_ptr<LocalRank>& mine = subgroups_[ranks];
    if (!mine) {
      const auto place = std::find(ranks.begin(), ranks.end(), rank_);
      const bool ascend = std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
      if (place == ranks.end() || !ascend || ranks.back() >= size()) {
        return Error(ErrorCode::kInvalidArgument,
                     "a subgroup needs ranks of the group in ascending order, with its own");
      }
      mine = std::make_unique<LocalRank>(rendezvous_->subgroup(ranks), static_cast<std::size_t>(place - ranks.begin()));
    }
    return mine.get();
  }

 private:
  static Messages one(std::string bytes) {
    Messages messages;
    messages.push_back(std::move(bytes));
    return messages;
  }

  Result<Messages> call(const Call& call, Messages messages) {
    auto result = guard_.run(call.root, [&]() -> Result<Messages> {
      const bool scatters = call.operation == Operation::kScatter && call.root == rank_;
      if (scatters && messages.size() != size()) return coordination::wrong_message_count(size(), messages.size());
      return rendezvous_->call(rank_, call, std::move(messages));
    });
    if (!result) rendezvous_->leave(rank_, result.error().what());  // 5.
    return result;
  }

  const std::shared_ptr<Rendezvous> rendezvous_;  // owned by all ranks of the group
  const std::size_t rank_;
  coordination::CallGuard guard_;
  std::map<std::vector<std::size_t>, std::unique_ptr<LocalRank>> subgroups_;
};

}  // namespace

std::vector<std::unique_ptr<Collectives>> make_local_group(std::size_t rank_count,
                                                           std::optional<std::chrono::milliseconds> timeout) {
  const auto rendezvous = std::make_shared<Rendezvous>(rank_count, timeout);
  std::vector<std::unique_ptr<Collectives>> ranks;
  for (std::size_t rank = 0; rank < rank_count; ++rank) ranks.push_back(std::make_unique<LocalRank>(rendezvous, rank));
  return ranks;
}

}  // namespace cairn
