#include "os/process_identity.h"

#include <signal.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <sstream>

namespace cairn::os {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) return "";
  return name;
}

std::string current_pid_namespace() {
  std::array<char, 64> target{};
  const ssize_t length = readlink("/proc/self/ns/pid", target.data(), target.size());
  return length > 0 ? std::string(target.data(), static_cast<std::size_t>(length)) : "";
}

std::string current_boot_id() { return first_line("/proc/sys/kernel/random/boot_id"); }

// Field 22 of /proc/PID/stat; the fields are counted after the command name, which may hold spaces and parentheses.
std::optional<std::uint64_t> start_time_of(std::int64_t pid) {
  const std::string line = first_line("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t after_name = line.rfind(')');
  if (after_name == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(after_name + 1));
  std::string field;
  constexpr int kFieldsBeforeStartTime = 20;
  for (int i = 0; i < kFieldsBeforeStartTime; ++i) {
    if (!(fields >> field)) return std::nullopt;
    if (i == 0 && field == "Z") return std::nullopt;  // a zombie does nothing any more
  }
  std::uint64_t ticks = 0;
  const auto parsed = std::from_chars(field.data(), field.data() + field.size(), ticks);
  if (parsed.ec != std::errc()) return std::nullopt;
  return ticks;
}

}  // namespace

ProcessIdentity ProcessIdentity::mine() {
  const std::int64_t pid = getpid();
  return {host_name(), current_boot_id(), current_pid_namespace(), pid, start_time_of(pid).value_or(0)};
}

ProcessIdentity::State ProcessIdentity::state() const {
  if (host != host_name()) return State::kElsewhere;
  // Two machines may share a name, so another boot need not be an earlier one of this machine.
  if (boot_id.empty() || boot_id != current_boot_id()) return State::kElsewhere;
  if (pid_namespace != current_pid_namespace()) return State::kElsewhere;
  const std::optional<std::uint64_t> ticks = start_time_of(pid);
  if (ticks) return *ticks == start_time ? State::kAlive : State::kDead;
  // Not in /proc: gone, unless /proc hides other users' processes from us.
  return kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM ? State::kElsewhere : State::kDead;
}

Random128 random_128() {
  Random128 bits{};
  if (getrandom(&bits, sizeof bits, 0) == static_cast<ssize_t>(sizeof bits)) return bits;
  std::random_device device;  // a kernel without getrandom
  const auto draw = [&device] { return (static_cast<std::uint64_t>(device()) << 32) | device(); };
  return {draw(), draw()};
}

}  // namespace cairn::os
