#include "fake_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace cairn::fake_cuda {

void refuse(const char* rule) {
  std::fprintf(stderr, "fake_cuda: %s\n", rule);
  std::abort();
}

std::uint64_t FakeDevices::allocate(int ordinal, std::size_t bytes) {
  const int fd = memfd_create("fake-device", MFD_CLOEXEC);
  const std::size_t mapped = bytes == 0 ? 1 : bytes;
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(mapped)) != 0) refuse("no memory for a device allocation");
  void* const address = mmap(nullptr, mapped, PROT_NONE, MAP_SHARED, fd, 0);
  void* const contents = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (address == MAP_FAILED || contents == MAP_FAILED) refuse("no memory for a device allocation");
  std::memset(contents, 0xa5, mapped);
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  allocations[begin] = {ordinal, bytes, static_cast<std::byte*>(contents), false};
  return begin;
}

void FakeDevices::free(std::uint64_t address) {
  const auto found = allocations.find(address);
  if (found == allocations.end() || found->second.is_freed) refuse("a free of memory that is not allocated");
  munmap(found->second.contents, found->second.bytes);
  found->second.contents = nullptr;
  found->second.is_freed = true;  // the address stays reserved
}

Allocation* FakeDevices::allocation_at(std::uint64_t address, std::uint64_t* begin) {
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) return nullptr;
  --found;
  if (address - found->first >= found->second.bytes) return nullptr;
  if (begin != nullptr) *begin = found->first;
  return &found->second;
}

std::byte* FakeDevices::contents_of(std::uint64_t address, std::size_t bytes) {
  std::uint64_t begin = 0;
  const Allocation* const allocation = allocation_at(address, &begin);
  if (allocation == nullptr) refuse("a copy of an address that is no device memory");
  if (allocation->is_freed) refuse("a copy of device memory after its free");
  if (bytes > allocation->bytes - (address - begin)) refuse("a copy beyond the end of device memory");
  return allocation->contents + (address - begin);
}

bool FakeDevices::is_registered(const std::byte* begin, std::size_t bytes) const {
  auto found = registrations.upper_bound(begin);
  if (found == registrations.begin()) return false;
  --found;
  return begin + bytes <= found->first + found->second;
}

bool FakeDevices::touches_registration(const std::byte* begin, std::size_t bytes) const {
  for (const auto& [first, size] : registrations) {
    if (begin < first + size && first < begin + bytes) return true;
  }
  return false;
}

bool FakeDevices::step(Stream& stream) {
  if (stream.queue.empty()) return false;
  Operation& next = stream.queue.front();
  if (next.hangs) return false;
  if (next.awaited != nullptr && next.awaited->completed < next.version) return step(*next.awaited->stream);
  const Operation done = std::move(next);
  stream.queue.pop_front();
  if (done.work) done.work();
  if (done.mark != nullptr) done.mark->completed = done.version;
  return true;
}

void FakeDevices::drain(Stream& stream) {
  while (!stream.queue.empty()) {
    if (!step(stream)) refuse("a wait for a kernel that never ends");
  }
}

void FakeDevices::lose_work(int ordinal) {
  for (const auto& [handle, stream] : streams) {
    if (stream->ordinal == ordinal) stream->queue.clear();
  }
}

}  // namespace cairn::fake_cuda
