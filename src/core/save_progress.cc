#include <cairn/options.h>

namespace cairn {

std::string_view name_of(SavePhase phase) {
  switch (phase) {
    case SavePhase::kStaging: return "staging";
    case SavePhase::kWriting: return "writing";
    case SavePhase::kSyncing: return "syncing";
    case SavePhase::kPublishing: return "publishing";
    case SavePhase::kWaiting: return "waiting";
    case SavePhase::kCommitting: return "committing";
    case SavePhase::kEnded: break;
  }
  return "ended";
}

}  // namespace cairn
