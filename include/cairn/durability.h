// Durability: whether a save waits until its bytes survive a power cut.
#pragma once

#include <cstdint>

namespace cairn {

enum class Durability : std::uint8_t {
  kDurable,   // a reported save survives a power cut: files and directories are synced before the commit
  kBuffered,  // no syncs: the checkpoint survives a kill, and a power cut may lose or damage the checkpoint
};

}  // namespace cairn
