#include "coordination/call_guard.h"

#include <fmt/core.h>

namespace cairn::coordination {

Error wrong_message_count(std::size_t expected, std::size_t actual) {
  return Error(ErrorCode::kInvalidArgument, "scatter needs one message per rank at the root")
      .expected(fmt::format("{}", expected))
      .actual(fmt::format("{}", actual));
}

Error CallGuard::no_such_rank(std::size_t root) const {
  return Error(ErrorCode::kInvalidArgument, "the root is not a rank of the group")
      .expected(fmt::format("less than {}", size_))
      .actual(fmt::format("{}", root));
}

}  // namespace cairn::coordination
