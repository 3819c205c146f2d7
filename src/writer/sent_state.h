// SentState: the arenas and layouts that a writer process has received and keeps. A save of an unchanged state then
// needs only a short message.
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
  // Sends the arena's descriptor, if the writer does not have the arena.
  Result<void> send_arena(os::MessageSocket& socket, const std::shared_ptr<staging::Arena>& arena);
  // Makes the writer process forget destroyed arenas: the process would otherwise keep the arenas' memory. Does not
  // wait if the socket is full.
  void forget_dropped_arenas(os::MessageSocket& socket);
  // Returns the slot of this layout in the writer process. If necessary, sends the layout, which replaces the least
  // recently used layout.
  Result<std::uint64_t> send_layout(os::MessageSocket& socket, const StagedLayout& layout);

 private:
  struct Layout {
    std::uint64_t id = 0;
    std::uint64_t used = 0;  // the time of the last use; 0: never
  };
  std::map<std::uint64_t, std::weak_ptr<const void>> arenas_;  // by the arenas' lives
  std::array<Layout, kLayoutSlots> layouts_;
  std::uint64_t uses_ = 0;
};

}  // namespace cairn::writer
