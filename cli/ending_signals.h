// EndingSignals: lets a command clean up before SIGINT or SIGTERM ends the process.
#pragma once

namespace cairn::cli {

// While the object lives, a first SIGINT or SIGTERM only sets a flag, and a second one ends the process. An ignored
// signal (nohup) stays ignored. At most one object per process.
class EndingSignals {
 public:
  EndingSignals();
  EndingSignals(const EndingSignals&) = delete;
  EndingSignals& operator=(const EndingSignals&) = delete;

  // The signal that was caught; 0 if none was. Thread-safe.
  static int caught();
};

}  // namespace cairn::cli
