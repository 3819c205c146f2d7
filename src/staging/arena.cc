#include "staging/arena.h"

#include <atomic>

namespace cairn::staging {

Result<std::shared_ptr<Arena>> Arena::make() {
  static std::atomic<std::uint64_t> next{1};
  CAIRN_TRY_ASSIGN(os::MemoryFile memory, os::MemoryFile::create("cairn-arena"));
  auto arena = std::make_shared<Arena>(std::move(memory));
  arena->id_ = next.fetch_add(1);
  return arena;
}

Result<void> Arena::fit(std::uint64_t bytes) {
  const std::uint64_t room = memory_.bytes().size();
  if (bytes <= room && bytes >= room / 2) return {};
  CAIRN_TRY(memory_.resize(bytes));
  present_ = std::min<std::uint64_t>(present_, memory_.bytes().size());
  return {};
}

}  // namespace cairn::staging
