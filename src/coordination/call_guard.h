// CallGuard: what every Collectives does around its calls: checks the root, and refuses all after the first failure.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace cairn::coordination {

// kInvalidArgument: the root of a scatter must have one message for each rank.
Error wrong_message_count(std::size_t expected, std::size_t actual);

class CallGuard {
 public:
  explicit CallGuard(std::size_t size) : size_(size) {}

  // The result of `work`, a function without arguments that returns a Result, or the reason why it was not run.
  template <typename Work>
  auto run(std::size_t root, Work&& work) -> decltype(work()) {
    if (failure_) {
      return Error(ErrorCode::kUnavailable, std::string("not usable since a call failed: ") + failure_->what());
    }
    auto result = root < size_ ? std::forward<Work>(work)() : decltype(work())(no_such_rank(root));
    if (!result) failure_ = result.error();
    return result;
  }

 private:
  Error no_such_rank(std::size_t root) const;

  std::size_t size_;
  std::optional<Error> failure_;  // the first
};

}  // namespace cairn::coordination
