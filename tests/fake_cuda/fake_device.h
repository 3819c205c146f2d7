// FakeDevices: the model behind the stand-in driver: memory, streams, events and registrations of imaginary devices.
//
// All functions are called under the lock of fake_cuda.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace cairn::fake_cuda {

inline constexpr int kDeviceCount = 2;

// Prints the message and aborts: the program under test broke a rule.
[[noreturn]] void refuse(const char* rule);

struct Event;

// One operation of a stream. `work` is empty for the marks and waits of events.
struct Operation {
  std::function<void()> work = {};
  std::shared_ptr<Event> mark = {};
  std::shared_ptr<Event> awaited = {};
  std::uint64_t version = 0;  // of the mark or the awaited event
  bool hangs = false;
};

struct Stream {
  int ordinal = 0;
  std::deque<Operation> queue;
  bool is_capturing = false;
  bool is_destroyed = false;
};

struct Event {
  int ordinal = 0;
  std::uint64_t recorded = 0;  // version of the last record
  std::uint64_t completed = 0;
  std::shared_ptr<Stream> stream;  // of the last record
  bool is_destroyed = false;
};

struct Allocation {
  int ordinal = 0;
  std::size_t bytes = 0;
  std::byte* contents = nullptr;  // the accessible mapping
  bool is_freed = false;
};

class FakeDevices {
 public:
  std::uint64_t allocate(int ordinal, std::size_t bytes);
  void free(std::uint64_t address);
  // The allocation that holds the address, also a freed one; null if there is none.
  Allocation* allocation_at(std::uint64_t address, std::uint64_t* begin = nullptr);
  // The accessible bytes of live device memory. Refuses other addresses.
  std::byte* contents_of(std::uint64_t address, std::size_t bytes);

  // The registration that holds the address; end of the map if none.
  bool is_registered(const std::byte* begin, std::size_t bytes) const;
  bool touches_registration(const std::byte* begin, std::size_t bytes) const;

  // Carries out the next operation that the stream waits for. False if a hanging kernel prevents progress, or if the
  // stream is empty.
  bool step(Stream& stream);
  void drain(Stream& stream);
  void lose_work(int ordinal);

  std::map<std::uint64_t, Allocation> allocations;
  std::map<const std::byte*, std::size_t> registrations;
  std::map<void*, std::shared_ptr<Stream>> streams;
  std::map<void*, std::shared_ptr<Event>> events;
};

}  // namespace cairn::fake_cuda
