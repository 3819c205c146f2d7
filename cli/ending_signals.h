// EndingSignals: lets a command clean up before SIGINT or SIGTERM ends the process.
#pragma once

namespace cairn::cli {

// Sets the handler of SIGINT and SIGTERM, with `flags` as in sigaction(2). An ignored signal (nohup) stays ignored.
void handle_ending_signals(void (*handler)(int), int flags);

// While the object lives, a first SIGINT or SIGTERM only sets a flag, and a second one ends the process. At most
// one object per process.
class EndingSignals {
 public:
  EndingSignals();
  EndingSignals(const EndingSignals&) = delete;
  EndingSignals& operator=(const EndingSignals&) = delete;

  // The signal that was caught; 0 if none was. Thread-safe.
  static int caught();
};

}  // namespace cairn::cli
