// TraceFile: the events of this process, in a file of Chrome's trace format (the JSON array format).
//
// The file begins with '[', and each further line is an object with a comma at its end. The ']' is missing, as the
// format permits: the file is whole after a SIGKILL. An operation has a pair of threads ("lanes" of the viewer) that no
// operation uses at the same time: one for the operation and the steps of the caller, and one for the steps of the
// writer. So the spans of a thread are nested.
//
// Events are kept in memory as numbers, and become lines, in one call, with
//
// - the begin of an operation that is not asynchronous, so that the file shows in which operation a killed process was;
// - write(), by which an asynchronous save's writer does the same;
// - the end of their operation, and each event later than kKeptMax after its begin.
//
// Hence a kill loses at most steps of operations that have not ended, and asynchronous saves whose writer has not
// begun.
//
// Thread-safe. A failure ends the trace, and no operation.
#pragma once

#include <cairn/events.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "os/fd.h"

namespace cairn::events {

inline constexpr std::string_view kTracePrefix = "cairn-trace-";  // of the files' names
inline constexpr std::string_view kTraceSuffix = ".json";

class TraceFile {
 public:
  // Makes the folder and the file at the first event. `role` names the process in the trace.
  TraceFile(std::string directory, std::string role) : directory_(std::move(directory)), role_(std::move(role)) {}

  // Ignores events of other processes.
  void add(const Event& event);
  // No event of the operation follows.
  void leave(std::uint64_t operation);
  // The events in memory.
  void write();
  // Why no events are written; nullopt from the second call on.
  std::optional<std::string> take_problem();

 private:
  struct Step {
    EventKind kind = EventKind::kPlanned;
    bool is_beside = false;  // carried out while the caller goes on
    std::int64_t begin = 0;  // nanoseconds since 1970
    std::int64_t length = 0;
    std::uint64_t bytes = 0;
  };
  // A free lane keeps its memory for the next operation.
  struct Lane {
    std::uint64_t operation = 0;  // 0: none
    std::int64_t begin = 0;
    Event first;
    bool is_begun_kept = false;  // the line of the begin is to be written
    std::vector<Step> steps;
    std::string arguments;                // of the operation's lines, as JSON; empty: not made yet
    std::array<std::string, 2> places{};  // as JSON: the thread of the calls, and of the steps beside them
  };

  bool open(const Event& first);
  Lane& lane_of(const Event& event);
  void name_lane(std::uint64_t number, Lane& lane);
  void make_lines(Lane& lane);
  void add_moment(const Event& event, const Lane& lane);
  void add_operation(const Event& event, const Lane& lane);
  void write_kept();
  void give_up(const Error& reason);

  const std::string directory_;
  const std::string role_;
  std::mutex mutex_;
  os::Fd file_;
  bool given_up_ = false;
  std::optional<std::string> problem_;
  std::int64_t process_id_ = 0;
  std::vector<Lane> lanes_;
  std::string kept_;  // lines that are not written
};

}  // namespace cairn::events
