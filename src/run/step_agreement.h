// StepAgreement: all ranks learn of a request (a save, a stop) at the same boundary between two steps, without a
// collective. The steps of the protocol are at the top of step_agreement.cc.
#pragma once

#include <cairn/managed_run.h>
#include <cairn/result.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace cairn::run {

// A set of requests.
using Requests = unsigned;
inline constexpr Requests kSaveRequest = 1;
inline constexpr Requests kStopRequest = 2;
// In a result of cross(): a request of this rank has had no answer within the deadline, and still waits.
inline constexpr Requests kUnanswered = 4;

struct AgreementGroup {
  std::shared_ptr<RunStore> store;  // null: this process alone
  std::size_t rank = 0;
  std::size_t size = 1;
  std::string prefix = {};  // of all keys in the store; equal on all ranks, and used once
  // For each answer of a rank. A call into the store that fails is made again for as long.
  std::chrono::milliseconds deadline{30'000};
  // Called in a thread, if the store is lost or the protocol ends with a failure.
  std::function<void(const Error&)> warn = {};
};

class StepAgreement {
 public:
  static Result<std::unique_ptr<StepAgreement>> start(AgreementGroup group);
  // The other ranks count this one no longer. Waits 5 seconds at most for a store that hangs: its thread is left behind
  // then, and keeps the store.
  ~StepAgreement();
  StepAgreement(const StepAgreement&) = delete;
  StepAgreement& operator=(const StepAgreement&) = delete;

  // From any thread.
  void request(Requests requests);
  // The end of `step` on this rank: the requests whose agreed step is `step`, or is a step that the caller has left
  // out. Steps ascend. One thread at a time. kUnavailable, once, if the ranks could not agree: the others may have
  // agreed without this rank. kCancelled by `interrupted`.
  Result<Requests> cross(std::uint64_t step, const std::function<bool()>& interrupted);

 private:
  class Rounds;
  explicit StepAgreement(std::shared_ptr<Rounds> rounds);
  std::shared_ptr<Rounds> rounds_;  // also the threads'
};

}  // namespace cairn::run
