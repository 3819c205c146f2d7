// TraceFile: the events of this process, in a file of Chrome's trace format (the JSON array format).
//
// The file begins with '[', and each further line is an object with a comma at its end. The ']' is missing, as the
// format permits: the file is whole after a SIGKILL. An operation has a pair of threads ("lanes" of the viewer) that no
// operation uses at the same time: one for the operation and the steps of the caller, and one for the steps of the
// writer. So the spans of a thread are nested.
//
// Lines are kept in memory until their operation has ended, and written then in one call; lines of an operation that
// lasts longer are written with the first event after kKeptMax. The line of a begin is written at once: it shows which
// operation a killed process was in.
//
// Thread-safe. A failure ends the trace, and no operation.
#pragma once

#include <cairn/events.h>

#include <chrono>
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
  // Why no events are written; nullopt from the second call on.
  std::optional<std::string> take_problem();

 private:
  using Clock = std::chrono::steady_clock;

  bool open(const Event& first);
  std::size_t lane_of(const Event& event);
  void add_lines(const Event& event, std::size_t lane);
  void name_lane(std::size_t lane);
  void write_kept();
  void give_up(const Error& reason);

  const std::string directory_;
  const std::string role_;
  std::mutex mutex_;
  os::Fd file_;
  bool given_up_ = false;
  std::optional<std::string> problem_;
  std::int64_t process_id_ = 0;
  std::vector<std::uint64_t> lanes_;  // the operation of each lane; 0: none
  std::string kept_;                  // lines that are not written
  Clock::time_point kept_since_;
};

}  // namespace cairn::events
