// Collectives::smallest for transports without a reduction.
#include <cairn/collectives.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace cairn {

Result<std::vector<std::int64_t>> Collectives::smallest(std::vector<std::int64_t> numbers) {
  std::string message(numbers.size() * sizeof(std::int64_t), '\0');
  std::memcpy(message.data(), numbers.data(), message.size());  // the ranks of a job have one byte order
  const std::size_t bytes = message.size();
  CAIRN_TRY_ASSIGN(const std::vector<std::string> messages, all_gather(std::move(message)));
  for (std::size_t sender = 0; sender < messages.size(); ++sender) {
    if (messages[sender].size() != bytes) {
      return Error(ErrorCode::kInvalidArgument, "the ranks have different numbers of numbers")
          .rank(static_cast<std::int64_t>(sender))
          .expected(std::to_string(bytes / sizeof(std::int64_t)))
          .actual(std::to_string(messages[sender].size() / sizeof(std::int64_t)));
    }
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      std::int64_t number = 0;
      std::memcpy(&number, messages[sender].data() + i * sizeof(number), sizeof(number));
      numbers[i] = std::min(numbers[i], number);
    }
  }
  return numbers;
}

}  // namespace cairn
