// SaveProgress: how far one rank's part of a save is.
#pragma once

#include <cstdint>
#include <string_view>

namespace cairn {

enum class SavePhase : std::uint8_t {
  kStaging,     // the trainer's bytes are being copied
  kWriting,     // files are written
  kSyncing,     // files are synced: no bytes are counted
  kPublishing,  // files get their final names
  kWaiting,     // for other ranks' files, or for the coordinator's verdict
  kCommitting,  // `.metadata` is put in place, what it replaces removed
  kEnded,
};
std::string_view name_of(SavePhase phase);  // "staging" and so on

struct SaveProgress {
  SavePhase phase = SavePhase::kStaging;
  std::uint64_t bytes_written = 0;  // of this rank's files
  std::uint64_t bytes_total = 0;    // 0 until it is known
};

}  // namespace cairn
