// WatchedSave: a save as `cairn watch` has seen it, in a line.
#pragma once

#include <cairn/latest.h>
#include <cairn/options.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace cairn::cli {

// The sums of all writers, with the phase of the writer that has the most bytes to write.
SaveProgress progress_of_all(const SaveInFlight& save);

class WatchedSave {
 public:
  using Clock = std::chrono::steady_clock;

  WatchedSave(SaveInFlight save, Clock::time_point now);
  // The same save at a later look.
  void look(SaveInFlight save, Clock::time_point now);

  const SaveInFlight& save() const { return save_; }
  double seconds() const { return std::chrono::duration<double>(last_ - first_).count(); }  // from first to last look
  // "step-40 writing [####....]  50%  1.0 GiB of 2.0 GiB  250.0 MiB/s, 0:04 left  4 writers  rank 3: writing
  // '__3_0.distcp' for 12.1 s", with a bar of at most `columns` characters. The phase is that of the writer that has
  // the most to do, the call that of the writer with the longest. A save that no process works on says so.
  std::string line(std::size_t columns) const;

 private:
  // Between the first look and the last one that found more bytes.
  std::string rate() const;

  SaveInFlight save_;
  Clock::time_point first_;
  std::uint64_t first_bytes_;
  Clock::time_point last_;
  Clock::time_point changed_;
  std::uint64_t bytes_;
};

}  // namespace cairn::cli
