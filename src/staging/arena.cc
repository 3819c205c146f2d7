#include "staging/arena.h"

#include <string>

#include "core/checked.h"

namespace cairn::staging {
namespace {

// The most bytes taken between two checks of the limits, and the largest share of the room: several ranks may share a
// group, and a rank does not know the grants of the remaining ranks.
constexpr std::uint64_t kGrantMax = std::uint64_t{64} << 20;
constexpr std::uint64_t kGrantShare = 16;

// Allocates the page of the staged mark.
Result<void> make_mark(os::GrowingMemory& memory) {
  CAIRN_TRY(memory.resize(os::kPageBytes));
  return memory.populate(0, os::kPageBytes);
}

}  // namespace

Error no_room(const os::MemoryRoom& room, std::uint64_t needed) {
  return Error(ErrorCode::kNoSpace,
               "not enough memory for a further copy of the state: the kernel's OOM killer could end a process; "
               "lower generations, raise the limit, or save synchronously")
      .expected("room for " + std::to_string(needed) + " bytes")
      .actual(std::to_string(room.bytes) + " bytes: " + room.figures());
}

Result<std::shared_ptr<Arena>> Arena::make(std::shared_ptr<const os::MemoryLimits> limits) {
  static std::atomic<std::uint64_t> next{1};
  auto arena = std::make_shared<Arena>();
  CAIRN_TRY(make_mark(*arena->memory_));
  arena->id_ = next.fetch_add(1);
  arena->limits_ = std::move(limits);
  return arena;
}

Result<std::shared_ptr<Arena>> Arena::make_shared(std::shared_ptr<const os::MemoryLimits> limits) {
  CAIRN_TRY_ASSIGN(std::shared_ptr<Arena> arena, make(std::move(limits)));
  CAIRN_TRY(arena->share());
  return arena;
}

void Arena::use(os::MemoryFile memory) {
  auto file = std::make_unique<os::MemoryFile>(std::move(memory));
  file_ = file.get();
  memory_ = std::move(file);
}

Result<void> Arena::share() {
  if (is_shared()) return {};
  CAIRN_TRY_ASSIGN(os::MemoryFile memory, os::MemoryFile::create("cairn-arena"));
  CAIRN_TRY(make_mark(memory));
  withdraw_registration();
  use(std::move(memory));
  present_ = 0;
  return {};
}

Result<std::shared_ptr<Arena>> Arena::adopt(os::MemoryFile memory) {
  if (memory.bytes().size() < os::kPageBytes) {
    return Error(ErrorCode::kInvalidArgument, "shared memory that is too small for an arena")
        .actual(std::to_string(memory.bytes().size()) + " bytes");
  }
  return std::make_shared<Arena>(std::move(memory));
}

std::uint64_t Arena::missing_bytes(std::uint64_t bytes) const noexcept {
  const std::uint64_t needed = os::kPageBytes + align_up(bytes, os::kPageBytes);
  return needed - std::min(needed, present_bytes());
}

Result<void> Arena::fit(std::uint64_t bytes) {
  wanted_ = bytes;
  granted_ = kSmallBytes;
  const std::uint64_t room = this->bytes().size();
  const bool is_mapped = !memory_->bytes().empty();  // false if an earlier change of size failed half-way
  if (is_mapped && bytes <= room && bytes >= room / 2) return {};
  withdraw_registration();
  present_ = std::min(present_, bytes);
  lacks_memory_ = false;
  return memory_->resize(os::kPageBytes + bytes);
}

std::shared_ptr<device::Registration> Arena::begin_registration(device::Driver& driver, std::int32_t ordinal) {
  if (registration_ == nullptr) {
    registration_ = std::make_shared<device::Registration>(driver, ordinal, memory_->bytes(), 0);
  }
  registration_->extend(os::kPageBytes + present_);
  return registration_;
}

void Arena::withdraw_registration() noexcept {
  if (registration_ != nullptr) registration_->withdraw();
  registration_ = nullptr;
}

Result<void> Arena::take_memory(std::uint64_t offset, std::uint64_t length, os::PageSize pages) {
  Result<void> taken = expect_room(length);
  if (taken) taken = memory_->populate(os::kPageBytes + offset, length, pages);
  if (!taken) lacks_memory_ = true;
  return taken;
}

// fit() found room for the whole arena, but concurrent processes take memory too: the room is checked again.
Result<void> Arena::expect_room(std::uint64_t length) {
  if (limits_ == nullptr) return {};
  for (std::uint64_t granted = granted_; granted >= length;) {
    if (granted_.compare_exchange_weak(granted, granted - length)) return {};
  }
  const os::MemoryRoom room = limits_->room(length + kGrantShare * kGrantMax);
  if (room.bytes < length) return no_room(room, length);
  granted_ = std::min(kGrantMax, (room.bytes - length) / kGrantShare);
  return {};
}

}  // namespace cairn::staging
