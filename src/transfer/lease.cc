#include "transfer/lease.h"

#include <charconv>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <sstream>
#include <system_error>

#include "os/signal_mask.h"

namespace cairn::transfer {
namespace {

constexpr std::string_view kLeaseName = "/lease";
constexpr std::string_view kFirstLine = "cairn-lease 1";
constexpr std::uint64_t kLeaseBytesMax = 64 * 1024;
constexpr std::chrono::seconds kHeartbeat{5};
constexpr int kTriesMax = 16;
// A heartbeat that is this old has stopped, even if clocks differ by a minute or two.
constexpr double kSilenceSeconds = 300;

std::string encode(const SaveIdentity& identity, const os::ProcessIdentity& process) {
  std::ostringstream text;
  text << kFirstLine << "\nsave " << to_hex(identity.save_id) << "\njob " << to_hex(identity.job_id) << "\nnumber "
       << identity.save_number << "\nhost " << process.host << "\nboot " << process.boot_id << "\nnamespace "
       << process.pid_namespace << "\npid " << process.pid << "\nstart " << process.start_time << "\n";
  return text.str();
}

// The process that a lease names; nullopt if the text is none of ours.
std::optional<os::ProcessIdentity> decode(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != kFirstLine) return std::nullopt;
  os::ProcessIdentity process;
  while (std::getline(lines, line)) {
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) return std::nullopt;
    const std::string name = line.substr(0, space);
    const std::string value = line.substr(space + 1);
    const char* end = value.data() + value.size();
    if (name == "host") process.host = value;
    if (name == "boot") process.boot_id = value;
    if (name == "namespace") process.pid_namespace = value;
    if (name == "pid" && std::from_chars(value.data(), end, process.pid).ptr != end) return std::nullopt;
    if (name == "start" && std::from_chars(value.data(), end, process.start_time).ptr != end) return std::nullopt;
  }
  return process.pid > 0 ? std::optional(process) : std::nullopt;
}

void beat(std::stop_token stop, storage::Storage& storage, const std::string& name) {
  std::mutex mutex;
  std::condition_variable_any waiting;
  std::unique_lock lock(mutex);
  while (!waiting.wait_for(lock, stop, kHeartbeat, [&stop] { return stop.stop_requested(); })) {
    (void)storage.touch(name);  // a missed beat is harmless; many are what the lease is for
  }
}

}  // namespace

std::string folder_of(const SaveId& save_id) { return std::string(kFolderPrefix) + to_hex(save_id); }

std::optional<SaveId> save_id_of_folder(std::string_view name) {
  constexpr std::size_t kHalf = 16;
  if (!name.starts_with(kFolderPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kFolderPrefix.size());
  if (digits.size() != 2 * kHalf) return std::nullopt;
  SaveId id;
  const auto parse = [](std::string_view half, std::uint64_t& number) {
    const auto parsed = std::from_chars(half.data(), half.data() + half.size(), number, 16);
    return parsed.ec == std::errc() && parsed.ptr == half.data() + half.size();
  };
  if (!parse(digits.substr(0, kHalf), id.high) || !parse(digits.substr(kHalf), id.low)) return std::nullopt;
  return to_hex(id) == digits ? std::optional(id) : std::nullopt;
}

Result<Lease> Lease::take_with_folder(storage::Storage& storage, const SaveIdentity& identity) {
  for (int tries = 1;; ++tries) {
    CAIRN_TRY(storage.make_folder(folder_of(identity.save_id)));
    Result<Lease> lease = take(storage, identity);
    // Not found: somebody cleaning up took the folder, still empty, for a leftover.
    if (lease || lease.error().code() != ErrorCode::kNotFound || tries == kTriesMax) return lease;
  }
}

Result<Lease> Lease::take(storage::Storage& storage, const SaveIdentity& identity) {
  const std::string name = folder_of(identity.save_id) + std::string(kLeaseName);
  CAIRN_TRY(storage.create_whole(name, encode(identity, os::ProcessIdentity::mine()), Durability::kBuffered));
  const os::SignalMask no_signals;
  try {
    return Lease(std::jthread([&storage, name](std::stop_token stop) { beat(std::move(stop), storage, name); }));
  } catch (const std::system_error& error) {
    return Error(ErrorCode::kUnavailable, std::string("no thread for the heartbeat: ") + error.what());
  }
}

Result<bool> lease_has_run_out(const storage::Storage& storage, std::string_view folder) {
  const std::string name = std::string(folder) + std::string(kLeaseName);
  Result<std::string> text = storage::read_small(storage, name, kLeaseBytesMax);
  if (!text && text.error().code() != ErrorCode::kNotFound) return std::move(text).error();
  const std::optional<os::ProcessIdentity> process = text ? decode(*text) : std::nullopt;
  if (process) {
    const os::ProcessIdentity::State state = process->state();
    if (state != os::ProcessIdentity::State::kElsewhere) return state == os::ProcessIdentity::State::kDead;
  }
  // Another host's, or no lease yet: only time can tell.
  CAIRN_TRY_ASSIGN(const double silence, storage.seconds_since_touched(text ? std::string_view(name) : folder));
  return silence > kSilenceSeconds;
}

}  // namespace cairn::transfer
