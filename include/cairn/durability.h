// Whether a save waits until its bytes survive a power cut.
#pragma once

#include <cstdint>

namespace cairn {

enum class Durability : std::uint8_t {
  kDurable,   // what is reported saved survives a power cut: files and directories are synced before the commit
  kBuffered,  // the kernel writes it when it likes: a kill is survived, a power cut may lose the checkpoint
};

}  // namespace cairn
