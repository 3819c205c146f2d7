// ProcessIdentity: identifies a running process. Any process can later check whether the process is still alive.
#pragma once

#include <cstdint>
#include <string>

namespace cairn::os {

struct ProcessIdentity {
  std::string host;
  std::string boot_id;        // of the kernel; a new id after each boot
  std::string pid_namespace;  // a pid means nothing outside its namespace
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot: distinguishes processes with a reused pid

  static ProcessIdentity mine();

  enum class State : std::uint8_t {
    kAlive,
    kDead,
    kElsewhere
  };  // kElsewhere: on another host or in another container, state unknown
  State state() const;
};

// Random bits from the kernel.
struct Random128 {
  std::uint64_t high;
  std::uint64_t low;
};
Random128 random_128();

}  // namespace cairn::os
