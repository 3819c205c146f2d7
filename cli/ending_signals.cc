#include "ending_signals.h"

#include <atomic>
#include <csignal>

namespace cairn::cli {
namespace {

constexpr int kEndingSignals[] = {SIGINT, SIGTERM};
std::atomic<int> caught_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler writes the number");

}  // namespace

void handle_ending_signals(void (*handler)(int), int flags) {
  for (const int number : kEndingSignals) {
    struct sigaction current {};
    if (::sigaction(number, nullptr, &current) != 0 || current.sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    ::sigaction(number, &action, nullptr);
  }
}

EndingSignals::EndingSignals() {
  handle_ending_signals([](int caught) { caught_signal = caught; }, static_cast<int>(SA_RESETHAND));
}

int EndingSignals::caught() { return caught_signal.load(); }

}  // namespace cairn::cli
