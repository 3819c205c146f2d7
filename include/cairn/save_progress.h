// SaveProgress: the phase and the bytes of a rank's part of a save.
#pragma once

#include <cstdint>
#include <string_view>

namespace cairn {

enum class SavePhase : std::uint8_t {
  kStaging,     // the trainer copies its bytes
  kWriting,     // files are written
  kSyncing,     // files are synced: no bytes are counted
  kPublishing,  // files get their final names
  kWaiting,     // for the files of the remaining ranks, or for the coordinator's decision
  kCommitting,  // `.metadata` is renamed into place, and replaced files are removed
  kEnded,
};
std::string_view name_of(SavePhase phase);  // "staging" and so on

struct SaveProgress {
  SavePhase phase = SavePhase::kStaging;
  std::uint64_t bytes_written = 0;  // of this rank's files
  std::uint64_t bytes_total = 0;    // 0 while unknown
};

}  // namespace cairn
