// Under a sanitizer, the sanitizer's runtime calls a hook for each allocation. Otherwise the allocation functions below
// replace malloc and its relatives: they count, and call glibc's functions. Calls from inside the C library, and from
// its operator new, then reach the functions below too.
#include "decoding_bounds.h"

#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include <sanitizers.h>

#if CAIRN_ADDRESS_SANITIZER || CAIRN_THREAD_SANITIZER
#define CAIRN_COUNTS_BY_HOOK
#endif

namespace cairn::fuzz {
namespace {

// Plain numbers, because the count changes during an allocation.
struct Count {
  bool is_on;
  std::int64_t live;
  std::int64_t peak;
};
constinit thread_local Count count{};

void note_allocated(std::size_t bytes) {
  if (!count.is_on) return;
  count.live += static_cast<std::int64_t>(bytes);
  count.peak = std::max(count.peak, count.live);
}

void note_freed(std::size_t bytes) {
  if (count.is_on) count.live -= static_cast<std::int64_t>(bytes);
}

std::uint64_t processor_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

[[noreturn]] void give_up(const char* what, std::uint64_t spent, std::uint64_t most, std::uint64_t input_bytes) {
  std::fprintf(stderr, "ERROR: an input of %" PRIu64 " bytes took %" PRIu64 " %s to decode; the bound is %" PRIu64 "\n",
               input_bytes, spent, what, most);
  std::abort();
}

}  // namespace

#ifdef CAIRN_COUNTS_BY_HOOK
// NOLINTBEGIN(clang-diagnostic-reserved-identifier): the names of the sanitizers
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, std::size_t),
                                                         void (*on_free)(const volatile void*));
extern "C" std::size_t __sanitizer_get_allocated_size(const volatile void* memory);
namespace {
const int installed =
    __sanitizer_install_malloc_and_free_hooks([](const volatile void*, std::size_t bytes) { note_allocated(bytes); },
                                              [](const volatile void* memory) {
                                                if (memory != nullptr && count.is_on)
                                                  note_freed(__sanitizer_get_allocated_size(memory));
                                              });
}  // namespace
// NOLINTEND(clang-diagnostic-reserved-identifier)
#else
namespace {
const int installed = 1;
}  // namespace
#endif

DecodingBounds::DecodingBounds(std::size_t input_bytes, std::uint64_t bytes_per_input_byte)
    : input_bytes_(input_bytes), bytes_per_input_byte_(bytes_per_input_byte), began_(processor_time()) {
  if (installed == 0) std::abort();  // the hooks would count nothing
  count = {true, 0, 0};
}

DecodingBounds::~DecodingBounds() {
  count.is_on = false;
  const std::uint64_t spent = processor_time() - began_;
  const std::uint64_t time_max = kNanosecondsMin + input_bytes_ * kNanosecondsPerInputByte;
  const std::uint64_t bytes_max = kBytesMin + input_bytes_ * bytes_per_input_byte_;
  const auto peak = static_cast<std::uint64_t>(count.peak);
  if (peak > bytes_max) give_up("bytes of memory", peak, bytes_max, input_bytes_);
  if (spent > time_max) give_up("ns", spent, time_max, input_bytes_);
}

}  // namespace cairn::fuzz

#ifndef CAIRN_COUNTS_BY_HOOK
// NOLINTBEGIN(clang-diagnostic-reserved-identifier, readability-inconsistent-declaration-parameter-name): glibc's names
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);
void __libc_free(void* memory);

void* malloc(std::size_t bytes) noexcept {
  void* memory = __libc_malloc(bytes);
  cairn::fuzz::note_allocated(malloc_usable_size(memory));
  return memory;
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  void* memory = __libc_calloc(count, bytes);
  cairn::fuzz::note_allocated(malloc_usable_size(memory));
  return memory;
}
void* realloc(void* memory, std::size_t bytes) noexcept {
  const std::size_t before = malloc_usable_size(memory);
  void* moved = __libc_realloc(memory, bytes);
  if (moved != nullptr || bytes == 0) cairn::fuzz::note_freed(before);
  cairn::fuzz::note_allocated(malloc_usable_size(moved));
  return moved;
}
void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
  void* memory = __libc_memalign(alignment, bytes);
  cairn::fuzz::note_allocated(malloc_usable_size(memory));
  return memory;
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept { return memalign(alignment, bytes); }
void free(void* memory) noexcept {
  cairn::fuzz::note_freed(malloc_usable_size(memory));
  __libc_free(memory);
}
}
// NOLINTEND(clang-diagnostic-reserved-identifier, readability-inconsistent-declaration-parameter-name)
#endif
