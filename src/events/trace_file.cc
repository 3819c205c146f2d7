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

constexpr std::int64_t kKeptMax = 20'000'000;  // nanoseconds
constexpr mode_t kFileMode = 0666;

std::int64_t nanoseconds_of(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// The name of the step that ends with an event.
constexpr std::string_view step_name(EventKind kind) {
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

void set_arguments(std::string& arguments, const Event& event) {
  arguments.clear();
  JsonText json(arguments);
  json.put("\"operation\":");
  json.put_number(event.id);
  json.put(",\"rank\":");
  json.put_number(event.rank);
  json.put(",\"ranks\":");
  json.put_number(event.rank_count);
  if (event.step) {
    json.put(",\"step\":");
    json.put_number(*event.step);
  }
  json.put(",\"directory\":");
  json.put_quoted(event.directory);
  json.flush();
}

// The rest of a line.
void put_cause(JsonText& json, const Event& event) {
  if (event.cause) {
    json.put(",\"cause\":");
    json.put_quoted(event.cause->what());
  }
  json.put("}},\n");
  json.flush();
}

std::int64_t end_of(const Event& event) { return nanoseconds_of(event.started) + event.duration.count(); }

}  // namespace

void TraceFile::add(const Event& event) {
  const std::lock_guard lock(mutex_);
  if (given_up_ || (process_id_ != 0 && event.process_id != process_id_)) return;
  if (!file_ && !open(event)) return;
  Lane& lane = lane_of(event);
  const bool has_ended = is_end(event.kind);
  bool is_due = has_ended || end_of(event) - lane.begin > kKeptMax;
  if (event.kind == EventKind::kBegun) {
    lane.is_begun_kept = true;
    is_due = !event.asynchronous;
  } else if (!step_name(event.kind).empty()) {
    const bool is_of_writer = event.kind == EventKind::kWritten || event.kind == EventKind::kCommitted;
    lane.steps.push_back({event.kind, event.asynchronous && is_of_writer, nanoseconds_of(event.started),
                          event.duration.count(), event.bytes});
  }
  if (!is_due) return;
  make_lines(lane);
  if (event.kind == EventKind::kFailed) add_moment(event, lane);
  if (has_ended) {
    add_operation(event, lane);
    lane.operation = 0;
  }
  write_kept();
}

void TraceFile::leave(std::uint64_t operation) {
  const std::lock_guard lock(mutex_);
  const auto lane =
      std::find_if(lanes_.begin(), lanes_.end(), [&](const Lane& it) { return it.operation == operation; });
  if (given_up_ || lane == lanes_.end()) return;
  make_lines(*lane);
  lane->operation = 0;
  write_kept();
}

void TraceFile::write() {
  const std::lock_guard lock(mutex_);
  if (given_up_) return;
  for (Lane& lane : lanes_) {
    if (lane.operation != 0) make_lines(lane);
  }
  write_kept();
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
TraceFile::Lane& TraceFile::lane_of(const Event& event) {
  Lane* free = nullptr;
  for (Lane& lane : lanes_) {
    if (lane.operation == event.id) return lane;
    if (lane.operation == 0 && free == nullptr) free = &lane;
  }
  if (free == nullptr) {
    free = &lanes_.emplace_back();
    name_lane(lanes_.size(), *free);
  }
  free->operation = event.id;
  free->begin = end_of(event) - event.since_begun.count();
  free->first = event;
  free->arguments.clear();
  return *free;
}

void TraceFile::name_lane(std::uint64_t number, Lane& lane) {
  const auto pid = static_cast<std::uint64_t>(process_id_);
  const std::string text = number == 1 ? std::string() : " " + std::to_string(number);
  for (const bool is_beside : {false, true}) {
    const std::uint64_t thread = 2 * number - (is_beside ? 0 : 1);
    TraceLine line(kept_, "M", "thread_name");
    line.number("ts", 0).number("pid", pid).number("tid", thread).begin_args();
    line.text("name", role_ + (is_beside ? ": writing" : ": calls") + text).end();
    lane.places[is_beside ? 1 : 0] = ",\"pid\":" + std::to_string(pid) + ",\"tid\":" + std::to_string(thread);
  }
}

void TraceFile::make_lines(Lane& lane) {
  if (lane.arguments.empty()) set_arguments(lane.arguments, lane.first);
  if (std::exchange(lane.is_begun_kept, false)) add_moment(lane.first, lane);
  JsonText json(kept_);
  for (const Step& step : lane.steps) {
    json.put("{\"ph\":\"X\",\"name\":\"");
    json.put(step_name(step.kind));
    json.put("\",\"ts\":");
    json.put_time(step.begin);
    json.put(",\"dur\":");
    json.put_time(step.length);
    json.put(lane.places[step.is_beside ? 1 : 0]);
    json.put(",\"args\":{\"operation\":");
    json.put_number(lane.operation);
    json.put(",\"bytes\":");
    json.put_number(step.bytes);
    json.put("}},\n");
  }
  json.flush();
  lane.steps.clear();
}

void TraceFile::add_moment(const Event& event, const Lane& lane) {
  JsonText json(kept_);
  json.put("{\"ph\":\"i\",\"name\":\"");
  json.put(name_of(event.kind));
  json.put("\",\"ts\":");
  json.put_time(end_of(event));
  json.put(lane.places[0]);
  json.put(",\"s\":\"t\",\"args\":{");
  json.put(lane.arguments);
  put_cause(json, event);
}

void TraceFile::add_operation(const Event& event, const Lane& lane) {
  JsonText json(kept_);
  json.put("{\"ph\":\"X\",\"name\":\"");
  json.put(name_of(event.operation));
  json.put("\",\"ts\":");
  json.put_time(lane.begin);
  json.put(",\"dur\":");
  json.put_time(end_of(event) - lane.begin);
  json.put(lane.places[0]);
  json.put(",\"args\":{");
  json.put(lane.arguments);
  json.put(",\"bytes\":");
  json.put_number(event.bytes);
  put_cause(json, event);
}

// One call, so that no other process's line comes between, and a SIGKILL leaves whole lines.
void TraceFile::write_kept() {
  if (kept_.empty()) return;
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
