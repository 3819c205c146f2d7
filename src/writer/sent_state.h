// SentState: what a writer process has been sent already and keeps: arenas and layouts, so that a save like the last
// one costs a short message.
//
// One thread at a time.
#pragma once

#include <cairn/result.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "os/message_socket.h"
#include "staging/arena.h"
#include "writer/messages.h"

namespace cairn::writer {

class SentState {
 public:
  // Sends the arena's descriptor, if the writer has it not.
  Result<void> send_arena(os::MessageSocket& socket, const std::shared_ptr<staging::Arena>& arena);
  // Has the writer forget arenas that are no more: it would keep their memory. Does not wait for a writer that does not
  // listen.
  void forget_dropped_arenas(os::MessageSocket& socket);
  // The slot where the writer has this layout, which is sent if need be in place of the one that was used least
  // recently.
  Result<std::uint64_t> send_layout(os::MessageSocket& socket, const StagedLayout& layout);

 private:
  struct Layout {
    std::uint64_t id = 0;
    std::uint64_t used = 0;  // when; 0: never
  };
  std::map<std::uint64_t, std::weak_ptr<const void>> arenas_;  // by their lives
  std::array<Layout, kLayoutSlots> layouts_;
  std::uint64_t uses_ = 0;
};

}  // namespace cairn::writer
