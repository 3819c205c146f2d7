// ProcessIdentity: names a running process so that others can tell later whether it still lives.
#pragma once

#include <cstdint>
#include <string>

namespace cairn::os {

struct ProcessIdentity {
  std::string host;
  std::string boot_id;        // of the kernel: a new one after each start of the machine
  std::string pid_namespace;  // pids of another container on the host mean nothing here
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot: tells a process from a later one with its pid

  static ProcessIdentity mine();

  enum class State : std::uint8_t { kAlive, kDead, kElsewhere };  // kElsewhere: another host or container: can't tell
  State state() const;
};

// Random bits from the kernel.
struct Random128 {
  std::uint64_t high;
  std::uint64_t low;
};
Random128 random_128();

}  // namespace cairn::os
