// CallGuard: checks common to all Collectives: refuses a wrong root, and refuses every call after the first failure.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace cairn::coordination {

// kInvalidArgument: the root of a scatter must have one message per rank.
Error wrong_message_count(std::size_t expected, std::size_t actual);

class CallGuard {
 public:
  explicit CallGuard(std::size_t size) : size_(size) {}

  // Returns the result of `work`, a function without arguments that returns a Result. Does not run `work` after an
  // earlier failure or with a wrong root; returns the reason instead.
  template <typename Work>
  auto run(std::size_t root, Work&& work) -> decltype(work()) {
    if (failure_) {
      return Error(ErrorCode::kUnavailable,
                   std::string("the group is unusable after a failed call: ") + failure_->what());
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
