#include "os/process_identity.h"

#include <signal.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <sstream>
#include <vector>

#include "core/whole_number.h"

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

// The fields read from /proc/PID/stat.
struct ProcessStat {
  bool has_ended = false;  // a zombie: has ended, but its parent has not yet read the exit status
  std::uint64_t start_time = 0;
};

std::optional<ProcessStat> stat_of(std::int64_t pid) {
  const std::string line = first_line("/proc/" + std::to_string(pid) + "/stat");
  // Fields are counted after the command name, which may contain spaces and parentheses.
  const std::size_t after_name = line.rfind(')');
  if (after_name == std::string::npos) return std::nullopt;
  std::istringstream text(line.substr(after_name + 1));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(text), {}};
  constexpr std::size_t kState = 0;
  constexpr std::size_t kThreadCount = 17;
  constexpr std::size_t kStartTime = 19;
  if (fields.size() <= kStartTime) return std::nullopt;
  ProcessStat stat;
  const auto start_time = whole_number<std::uint64_t>(fields[kStartTime]);
  if (!start_time) return std::nullopt;
  stat.start_time = *start_time;
  // The first thread may be a zombie while other threads still run, or are about to leave a system call.
  stat.has_ended = fields[kState] == "X" ||
                   (fields[kState] == "Z" && fields[kThreadCount].size() == 1 && fields[kThreadCount].front() <= '1');
  return stat;
}

}  // namespace

ProcessIdentity ProcessIdentity::mine() {
  const std::int64_t pid = getpid();
  return {host_name(), current_boot_id(), current_pid_namespace(), pid,
          stat_of(pid).value_or(ProcessStat()).start_time};
}

ProcessIdentity::State ProcessIdentity::state() const {
  if (host != host_name()) return State::kElsewhere;
  // Two machines may share a host name: a different boot id may belong to a second machine.
  if (boot_id.empty() || boot_id != current_boot_id()) return State::kElsewhere;
  if (pid_namespace != current_pid_namespace()) return State::kElsewhere;
  const std::optional<ProcessStat> stat = stat_of(pid);
  if (stat) return stat->start_time == start_time && !stat->has_ended ? State::kAlive : State::kDead;
  // The process is not in /proc: dead, unless /proc hides the processes of other users.
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
