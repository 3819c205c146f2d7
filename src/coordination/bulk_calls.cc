// The calls of Collectives for tensor data, for transports that have none of their own.
#include <cairn/collectives.h>

#include <algorithm>
#include <string>

namespace cairn {

Result<void> Collectives::broadcast_in_place(std::span<std::byte> bytes, std::size_t root) {
  std::string message;
  if (rank() == root) message.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  CAIRN_TRY_ASSIGN(message, broadcast(std::move(message), root));
  if (message.size() != bytes.size()) {
    return Error(ErrorCode::kInvalidArgument, "the ranks gave different numbers of bytes to a broadcast")
        .rank(static_cast<std::int64_t>(root))
        .expected(std::to_string(bytes.size()))
        .actual(std::to_string(message.size()));
  }
  if (rank() != root) std::copy_n(reinterpret_cast<const std::byte*>(message.data()), bytes.size(), bytes.data());
  return {};
}

Result<Collectives*> Collectives::subgroup(const std::vector<std::size_t>&) {
  Collectives* none = nullptr;
  return none;
}

}  // namespace cairn
