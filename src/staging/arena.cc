#include "staging/arena.h"

namespace cairn::staging {

Result<std::shared_ptr<Arena>> Arena::make() {
  static std::atomic<std::uint64_t> next{1};
  CAIRN_TRY_ASSIGN(os::MemoryFile memory, os::MemoryFile::create("cairn-arena"));
  CAIRN_TRY(memory.resize(os::kPageBytes));
  CAIRN_TRY(memory.populate(0, os::kPageBytes));
  auto arena = std::make_shared<Arena>(std::move(memory));
  arena->id_ = next.fetch_add(1);
  return arena;
}

Result<std::shared_ptr<Arena>> Arena::adopt(os::MemoryFile memory) {
  if (memory.bytes().size() < os::kPageBytes) {
    return Error(ErrorCode::kInvalidArgument, "shared memory that is too small for an arena")
        .actual(std::to_string(memory.bytes().size()) + " bytes");
  }
  return std::make_shared<Arena>(std::move(memory));
}

Result<void> Arena::fit(std::uint64_t bytes) {
  const std::uint64_t room = this->bytes().size();
  const bool is_mapped = !memory_.bytes().empty();  // not after a change of size that failed half-way
  if (is_mapped && bytes <= room && bytes >= room / 2) return {};
  present_ = std::min(present_, bytes);
  return memory_.resize(os::kPageBytes + bytes);
}

}  // namespace cairn::staging
