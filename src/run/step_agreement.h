// StepAgreement: all ranks learn of a request (a save, a stop) at the same boundary between two steps, without a
// collective. The steps of the protocol are at the top of step_agreement.cc.
#pragma once

#include <cairn/managed_run.h>
#include <cairn/result.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace cairn::run {

// A set of requests.
using Requests = unsigned;
inline constexpr Requests kSaveRequest = 1;
inline constexpr Requests kStopRequest = 2;

struct AgreementGroup {
  std::shared_ptr<RunStore> store;  // null: this process alone
  std::size_t rank = 0;
  std::size_t size = 1;
  std::string prefix = {};                     // of all keys in the store; equal on all ranks, and used once
  std::chrono::milliseconds deadline{30'000};  // for each answer of a rank
};

class StepAgreement {
 public:
  static Result<std::unique_ptr<StepAgreement>> start(AgreementGroup group);
  // Waits for the threads, at most for a call into the store; then the other ranks count this one no longer.
  ~StepAgreement();
  StepAgreement(const StepAgreement&) = delete;
  StepAgreement& operator=(const StepAgreement&) = delete;

  // From any thread.
  void request(Requests requests);
  // The end of `step` on this rank: the requests whose agreed step is `step`, or is a step that the caller has left
  // out. Steps ascend. One thread at a time. kUnavailable if the ranks could not agree, kCancelled by `interrupted`.
  Result<Requests> cross(std::uint64_t step, const std::function<bool()>& interrupted);

 private:
  struct Agreement {
    std::uint64_t step;
    Requests requests;
  };

  explicit StepAgreement(AgreementGroup group) : group_(std::move(group)) {}
  void post(const std::stop_token& stop);
  void watch(const std::stop_token& stop);
  Result<void> answer(const std::stop_token& stop, std::uint64_t round);
  Result<void> decide(const std::stop_token& stop, std::uint64_t round);
  Result<std::vector<std::string>> await(const std::stop_token& stop, const std::vector<std::string>& keys,
                                         std::chrono::milliseconds deadline);
  bool has_ended();  // whether a rank has
  void pause(const std::stop_token& stop, std::chrono::milliseconds length);
  Error missing(const std::vector<std::string>& keys);
  void forget(std::uint64_t round);
  void fail(Error error);
  std::string key(const char* name, std::uint64_t round) const;
  std::string answer_key(std::uint64_t round, std::size_t rank) const;

  const AgreementGroup group_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  Requests pending_ = 0;          // of this rank, not answered yet
  std::uint64_t next_ = 0;        // the first step whose end this rank has not crossed
  std::uint64_t round_ = 0;       // the round whose notice the watcher waits for, or that is open
  bool is_open_ = false;          // the rank has answered, and there is no agreement yet
  std::deque<Agreement> agreed_;  // whose steps this rank has not crossed
  std::optional<Error> failure_;  // the protocol has ended
  std::jthread poster_;
  std::jthread watcher_;
};

}  // namespace cairn::run
