#include "commit/lease.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <sstream>
#include <vector>

#include "commit/bucket/tagged_lease.h"
#include "core/whole_number.h"
#include "os/start_thread.h"
#include "storage/staleness.h"

namespace cairn::commit {
namespace {

constexpr std::string_view kRankLeasePrefix = "lease-";
constexpr std::string_view kFirstLine = "cairn-lease 1";
constexpr std::string_view kFailedLine = "ended with a failure";
constexpr std::string_view kAbsent = "absent";  // a tag has quotes
constexpr std::chrono::seconds kHeartbeat{5};
// In a bucket each heartbeat is a request that is paid for, and ten thousands of ranks share the bucket's rate.
constexpr std::chrono::seconds kTaggedHeartbeat{60};
constexpr int kFolderTriesMax = 16;

std::string prefix_of(SaveForm form) { return std::string(kFolderPrefix) + (form == SaveForm::kModel ? "model-" : ""); }

// `since`: 0 for the lease of a save. The line "start" is the last of a complete lease.
std::string encode(const SaveIdentity& identity, const os::ProcessIdentity& process, std::uint64_t since = 0) {
  std::ostringstream text;
  text << kFirstLine << "\nsave " << to_hex(identity.save_id) << "\njob " << to_hex(identity.job_id) << "\nnumber "
       << identity.save_number << "\nhost " << process.host << "\nboot " << process.boot_id << "\nnamespace "
       << process.pid_namespace << "\npid " << process.pid << "\n";
  if (since > 0) text << "since " << since << "\n";
  text << "start " << process.start_time << "\n";
  return text.str();
}

// The inverse of encode_announced(), of the text behind "commit ".
std::optional<AnnouncedCommit> announced(const std::string& text) {
  const std::size_t space = text.find(' ');
  if (space == std::string::npos) return std::nullopt;
  const std::string condition = text.substr(space + 1);
  return AnnouncedCommit{text.substr(0, space), condition == kAbsent ? storage::WriteCondition::absent()
                                                                     : storage::WriteCondition::of_tag(condition)};
}

// The text that a heartbeat writes over the lease. The length never changes.
struct LeaseText {
  std::string identity;
  Lease::Progress progress;

  std::string whole() const { return progress ? identity + encode_progress_line(progress()) : identity; }
};

// Calls `once` at each interval. A missed beat is harmless: a lease runs out only after many missed beats.
void beat(std::stop_token stop, std::chrono::seconds interval, const std::function<void()>& once) {
  std::mutex mutex;
  std::condition_variable_any waiting;
  std::unique_lock lock(mutex);
  while (!waiting.wait_for(lock, stop, interval, [&stop] { return stop.stop_requested(); })) once();
}

// Whether a single lease has run out. If the lease is missing, the modification time of `if_missing` counts as the last
// heartbeat.
Result<bool> has_run_out(const storage::Storage& storage, const std::string& name, std::string_view if_missing,
                         const StorageClock& clock) {
  const Result<std::optional<LeaseHolder>> holder = read_lease(storage, name);
  // Only a missing lease has no heartbeat. A server that has lost track of the file says nothing about the process.
  if (!holder && !storage::is_absent(holder.error())) return storage::unavailable_if_stale(holder.error());
  if (holder && *holder) {
    const os::ProcessIdentity::State state = (*holder)->process.state();
    if (state != os::ProcessIdentity::State::kElsewhere) return state == os::ProcessIdentity::State::kDead;
  }
  // A process of another host, or no lease yet: only the time decides.
  CAIRN_TRY_ASSIGN(const double touched_at, storage.touched_at(holder ? std::string_view(name) : if_missing));
  CAIRN_TRY_ASSIGN(const double now, clock.now());
  return now - touched_at > kSilenceSeconds;
}

// Without a rename. A lease is young or old by the clock of the store. An old lease is not read: a process that was
// silent for so long finds its lease closed before it can commit. A young lease is read, as its process may have died
// on this host. Without any lease the youngest file decides: of a rank that came late, or of a cleaning that was
// interrupted.
Result<bool> has_run_out_in_bucket(const storage::Storage& storage, std::string_view folder) {
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage.list(folder));
  if (files.empty()) return Error(ErrorCode::kNotFound, "the folder of the save is gone").file(folder);
  CAIRN_TRY_ASSIGN(const double now, storage.now());
  bool has_lease = false;
  bool all_old = true;
  for (const storage::ListedFile& file : files) {
    const bool is_old = now - file.touched_at > kSilenceSeconds;
    all_old = all_old && is_old;
    if (file.name != kLeaseName && !rank_of_lease(file.name)) continue;
    has_lease = true;
    if (is_old) continue;
    const Result<std::optional<LeaseHolder>> holder = read_lease(storage, std::string(folder) + "/" + file.name);
    if (!holder && storage::is_absent(holder.error())) continue;  // the rank has just left
    if (!holder) return holder.error();
    const bool has_ended =
        *holder && ((*holder)->is_closed || (*holder)->process.state() == os::ProcessIdentity::State::kDead);
    if (!has_ended) return false;
  }
  return has_lease || all_old;
}

}  // namespace

std::optional<LeaseHolder> decode_lease(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != kFirstLine) return std::nullopt;
  LeaseHolder holder;
  std::optional<std::uint64_t> number = 0, since = 0, pid = 0, start;
  while (std::getline(lines, line)) {
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) return std::nullopt;
    const std::string name = line.substr(0, space);
    const std::string value = line.substr(space + 1);
    if (name == "save") holder.identity.save_id = save_id_of_hex(value).value_or(SaveId());
    if (name == "job") holder.identity.job_id = save_id_of_hex(value).value_or(SaveId());
    if (name == "number") number = whole_number<std::uint64_t>(value);
    if (name == "host") holder.process.host = value;
    if (name == "boot") holder.process.boot_id = value;
    if (name == "namespace") holder.process.pid_namespace = value;
    if (name == "since") since = whole_number<std::uint64_t>(value);
    if (name == "ended") holder.has_failed = line == kFailedLine;
    if (name == "pid") pid = whole_number<std::uint64_t>(value);
    if (name == "progress") holder.progress = decode_progress_line(line);
    if (name == "commit") holder.commit = announced(value);
    if (name == "decided") holder.is_decided = true;
    if (name == "closed") holder.is_closed = true;
    if (name == "start" && !lines.eof()) start = whole_number<std::uint64_t>(value);
  }
  if (!number || !since || !pid || !start) return std::nullopt;  // not complete
  holder.since = *since;
  holder.identity.save_number = *number;
  holder.process.pid = static_cast<std::int64_t>(*pid);
  holder.process.start_time = *start;
  return holder.process.pid > 0 ? std::optional(holder) : std::nullopt;
}

std::string encode_announced(const AnnouncedCommit& commit) {
  const bool absent = commit.condition.kind == storage::WriteCondition::Kind::kAbsent;
  return "commit " + commit.metadata_name + " " + (absent ? std::string(kAbsent) : commit.condition.tag) + "\n";
}

std::optional<SaveId> save_id_of_hex(std::string_view digits) {
  constexpr std::size_t kHalf = 16;
  if (digits.size() != 2 * kHalf) return std::nullopt;
  const auto high = whole_number<std::uint64_t>(digits.substr(0, kHalf), 16);
  const auto low = whole_number<std::uint64_t>(digits.substr(kHalf), 16);
  if (!high || !low) return std::nullopt;
  const SaveId id{*high, *low};
  return to_hex(id) == digits ? std::optional(id) : std::nullopt;
}

std::string folder_of(const SaveId& save_id, SaveForm form) { return prefix_of(form) + to_hex(save_id); }

std::optional<SaveId> save_id_of_folder(std::string_view name, SaveForm form) {
  const std::string prefix = prefix_of(form);
  if (!name.starts_with(prefix)) return std::nullopt;
  return save_id_of_hex(name.substr(prefix.size()));
}

std::string rank_lease_name(std::uint32_t rank) { return std::string(kRankLeasePrefix) + std::to_string(rank); }

std::optional<std::uint32_t> rank_of_lease(std::string_view name) {
  if (!name.starts_with(kRankLeasePrefix)) return std::nullopt;
  return whole_number<std::uint32_t>(name.substr(kRankLeasePrefix.size()));
}

Result<Lease> Lease::take_with_folder(storage::Storage& storage, const SaveIdentity& identity, Progress progress) {
  const std::string text = encode(identity, os::ProcessIdentity::mine());
  for (int tries = 1;; ++tries) {
    const Result<void> made = storage.make_folder(folder_of_save(identity));
    Result<Lease> lease = made ? take(storage, folder_of_save(identity) + "/" + std::string(kLeaseName), text, progress)
                               : Result<Lease>(made.error());
    // kNotFound: another save's cleaning has removed the folder while the folder was still empty.
    if (lease || lease.error().code() != ErrorCode::kNotFound || tries == kFolderTriesMax) return lease;
  }
}

Result<Lease> Lease::take_as_rank(storage::Storage& storage, const SaveIdentity& identity, std::uint32_t rank,
                                  Progress progress) {
  if (storage.has_rename()) {
    CAIRN_TRY(storage.join_folder(folder_of_save(identity)));
  } else {
    CAIRN_TRY_ASSIGN(const auto holder, read_lease(storage, folder_of_save(identity) + "/" + std::string(kLeaseName)));
    if (holder && holder->is_closed) return Error(ErrorCode::kNotFound, "the save was taken for dead");
  }
  std::string text = encode(identity, os::ProcessIdentity::mine());
  return take(storage, folder_of_save(identity) + "/" + rank_lease_name(rank), std::move(text), std::move(progress));
}

Result<Lease> Lease::take_file(storage::Storage& storage, const SaveIdentity& identity, const std::string& name) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto since = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
  return take(storage, name, encode(identity, os::ProcessIdentity::mine(), since), {});
}

Result<void> Lease::mark_failed(storage::Storage& storage, const std::string& name) {
  CAIRN_TRY_ASSIGN(const std::string text, storage::read_small(storage, name, kLeaseBytesMax));
  return storage.rewrite(name, text + std::string(kFailedLine) + "\n");
}

Result<Lease> Lease::take(storage::Storage& storage, const std::string& name, std::string identity, Progress progress) {
  if (!storage.has_rename()) {
    CAIRN_TRY_ASSIGN(auto tagged, TaggedLease::take(storage, name, std::move(identity), std::move(progress)));
    return take_tagged(std::move(tagged));
  }
  const LeaseText text{std::move(identity), std::move(progress)};
  CAIRN_TRY(storage.create_whole(name, text.whole(), Durability::kBuffered));
  // If the write fails for lack of space, touch() still shows that the process lives.
  const auto once = [&storage, name, text] {
    if (!text.progress || !storage.rewrite(name, text.whole())) (void)storage.touch(name);
  };
  const auto work = [once](std::stop_token stop) { beat(std::move(stop), kHeartbeat, once); };
  CAIRN_TRY_ASSIGN(std::jthread heartbeat, os::start_thread<std::jthread>("for the heartbeat", work));
  return Lease(std::move(heartbeat));
}

Result<Lease> Lease::take_tagged(std::shared_ptr<TaggedLease> tagged) {
  const auto work = [tagged](std::stop_token stop) {
    beat(std::move(stop), kTaggedHeartbeat, [&tagged] { (void)tagged->beat(); });
  };
  CAIRN_TRY_ASSIGN(std::jthread heartbeat, os::start_thread<std::jthread>("for the heartbeat", work));
  return Lease(std::move(heartbeat), std::move(tagged));
}

Result<void> Lease::announce(const AnnouncedCommit& commit) {
  if (tagged_ == nullptr) return Error(ErrorCode::kInternal, "an announced commit in a storage with a rename");
  return tagged_->announce(commit);
}

Result<std::optional<LeaseHolder>> read_lease(const storage::Storage& storage, std::string_view name) {
  CAIRN_TRY_ASSIGN(const std::string text, storage::read_small(storage, name, kLeaseBytesMax));
  return decode_lease(text);
}

Result<bool> lease_has_run_out(const storage::Storage& storage, std::string_view folder, const StorageClock& clock) {
  if (!storage.has_rename()) return has_run_out_in_bucket(storage, folder);
  const std::string prefix = std::string(folder) + "/";
  CAIRN_TRY_ASSIGN(const bool coordinator, has_run_out(storage, prefix + std::string(kLeaseName), folder, clock));
  if (!coordinator) return false;
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage.list(folder));
  for (const storage::ListedFile& file : files) {
    if (!rank_of_lease(file.name)) continue;
    Result<bool> rank = has_run_out(storage, prefix + file.name, prefix + file.name, clock);
    if (!rank && rank.error().code() == ErrorCode::kNotFound) continue;  // the rank has just left
    if (!rank || !*rank) return rank;
  }
  return true;
}

}  // namespace cairn::commit
