#include "events/trace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "events/trace_line.h"
#include "os/process_identity.h"

namespace cairn::events {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kKeptMax{20};
constexpr std::uint64_t kThreadsPerLane = 2;
constexpr mode_t kFileMode = 0666;

std::int64_t nanoseconds_of(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// The name of the step that ends with an event.
std::string_view step_name(EventKind kind) {
  switch (kind) {
    case EventKind::kPlanned: return "plan";
    case EventKind::kStaged: return "stage";
    case EventKind::kWritten: return "write";
    case EventKind::kCommitted: return "commit";
    default: return {};
  }
}

bool is_end(EventKind kind) {
  switch (kind) {
    case EventKind::kBegun:
    case EventKind::kPlanned:
    case EventKind::kStaged:
    case EventKind::kWritten: return false;
    default: return true;
  }
}

void add_arguments(TraceLine& line, const Event& event) {
  line.begin_args().number("operation", event.id).number("rank", event.rank).number("ranks", event.rank_count);
  if (event.step) line.number("step", *event.step);
  line.text("directory", event.directory).number("bytes", event.bytes);
  if (event.cause) line.text("cause", event.cause->what());
}

}  // namespace

void TraceFile::add(const Event& event) {
  const std::lock_guard lock(mutex_);
  if (given_up_ || (process_id_ != 0 && event.process_id != process_id_)) return;
  if (!file_ && !open(event)) return;
  if (kept_.empty()) kept_since_ = Clock::now();
  const std::size_t lane = lane_of(event);
  add_lines(event, lane);
  if (is_end(event.kind)) lanes_[lane] = 0;
  const bool is_due = event.kind == EventKind::kBegun || is_end(event.kind) || Clock::now() - kept_since_ > kKeptMax;
  if (is_due) write_kept();
}

void TraceFile::leave(std::uint64_t operation) {
  const std::lock_guard lock(mutex_);
  std::replace(lanes_.begin(), lanes_.end(), operation, std::uint64_t{0});
  if (!given_up_ && !kept_.empty()) write_kept();
}

std::optional<std::string> TraceFile::take_problem() {
  const std::lock_guard lock(mutex_);
  return std::exchange(problem_, std::nullopt);
}

bool TraceFile::open(const Event& first) {
  process_id_ = getpid();
  if (first.process_id != process_id_) return false;
  std::error_code failure;
  fs::create_directories(directory_, failure);
  if (failure) {
    give_up(Error::from_errno(failure.value(), "can't make the folder").file(directory_));
    return false;
  }
  const os::ProcessIdentity mine = os::ProcessIdentity::mine();
  const std::string name = std::string(kTracePrefix) + mine.host + "-" + std::to_string(mine.pid) + "-" +
                           std::to_string(mine.start_time) + std::string(kTraceSuffix);
  const fs::path path = fs::path(directory_) / name;
  file_ = os::Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kFileMode));
  if (!file_) {
    give_up(Error::from_errno(errno, "can't make a file").file(path.string()));
    return false;
  }
  kept_ = "[\n";
  const auto pid = static_cast<std::uint64_t>(process_id_);
  TraceLine line(kept_, "M", "process_name");
  line.number("ts", 0).number("pid", pid).number("tid", 0).begin_args();
  line.text("name", "rank " + std::to_string(first.rank) + ", " + role_ + " " + std::to_string(pid)).end();
  return true;
}

// The lane of the event's operation. An operation that is new to the file takes the first free lane.
std::size_t TraceFile::lane_of(const Event& event) {
  auto found = std::find(lanes_.begin(), lanes_.end(), event.id);
  if (found == lanes_.end()) {
    found = std::find(lanes_.begin(), lanes_.end(), 0);
    if (found == lanes_.end()) {
      found = lanes_.insert(lanes_.end(), 0);
      name_lane(static_cast<std::size_t>(found - lanes_.begin()));
    }
    *found = event.id;
  }
  return static_cast<std::size_t>(found - lanes_.begin());
}

void TraceFile::name_lane(std::size_t lane) {
  const std::string number = lane == 0 ? std::string() : " " + std::to_string(lane + 1);
  for (std::uint64_t thread = 1; thread <= kThreadsPerLane; ++thread) {
    TraceLine line(kept_, "M", "thread_name");
    line.number("ts", 0).number("pid", static_cast<std::uint64_t>(process_id_));
    line.number("tid", kThreadsPerLane * lane + thread).begin_args();
    line.text("name", role_ + (thread == 1 ? ": calls" : ": writing") + number).end();
  }
}

void TraceFile::add_lines(const Event& event, std::size_t lane) {
  const std::uint64_t calls = kThreadsPerLane * lane + 1;
  const bool is_beside =
      event.asynchronous && (event.kind == EventKind::kWritten || event.kind == EventKind::kCommitted);
  const auto pid = static_cast<std::uint64_t>(process_id_);
  const auto span = [&](std::string_view name, std::int64_t begin, std::chrono::nanoseconds length,
                        std::uint64_t thread) {
    TraceLine line(kept_, "X", name);
    line.time("ts", begin).time("dur", length.count()).number("pid", pid).number("tid", thread);
    return line;
  };
  if (const std::string_view name = step_name(event.kind); !name.empty()) {
    TraceLine line = span(name, nanoseconds_of(event.started), event.duration, is_beside ? calls + 1 : calls);
    line.begin_args().number("operation", event.id).number("bytes", event.bytes).end();
  }
  const std::int64_t end = nanoseconds_of(event.started) + event.duration.count();
  if (event.kind == EventKind::kBegun || event.kind == EventKind::kFailed) {
    TraceLine line(kept_, "i", event.kind == EventKind::kBegun ? "begun" : "failed");
    line.time("ts", end).number("pid", pid).number("tid", calls).text("s", "t");
    add_arguments(line, event);
    line.end();
  }
  if (!is_end(event.kind)) return;
  TraceLine line = span(name_of(event.operation), end - event.since_begun.count(), event.since_begun, calls);
  add_arguments(line, event);
  line.end();
}

// One call, so that no other process's line comes between, and a SIGKILL leaves whole lines.
void TraceFile::write_kept() {
  ssize_t written = 0;
  do {
    written = ::write(file_.get(), kept_.data(), kept_.size());
  } while (written < 0 && errno == EINTR);
  const bool is_whole = written == static_cast<ssize_t>(kept_.size());
  kept_.clear();  // keeps its memory
  if (is_whole) return;
  give_up(written < 0 ? Error::from_errno(errno, "can't write") : Error(ErrorCode::kNoSpace, "a short write"));
}

void TraceFile::give_up(const Error& reason) {
  given_up_ = true;
  file_ = os::Fd();
  kept_.clear();
  problem_ = std::string("no trace is written into '") + directory_ + "' (CAIRN_TRACE): " + reason.what();
}

}  // namespace cairn::events
