#include "ending_signals.h"

#include <atomic>
#include <csignal>

namespace cairn::cli {
namespace {

constexpr int kEndingSignals[] = {SIGINT, SIGTERM};
std::atomic<int> caught_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler writes the number");

}  // namespace

EndingSignals::EndingSignals() {
  for (const int number : kEndingSignals) {
    struct sigaction current {};
    if (::sigaction(number, nullptr, &current) != 0 || current.sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = [](int caught) { caught_signal = caught; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(number, &action, nullptr);
  }
}

int EndingSignals::caught() { return caught_signal.load(); }

}  // namespace cairn::cli
