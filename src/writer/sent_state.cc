#include "writer/sent_state.h"

#include <algorithm>
#include <string>

namespace cairn::writer {

Result<void> SentState::send_arena(os::MessageSocket& socket, const std::shared_ptr<staging::Arena>& arena) {
  forget_dropped_arenas(socket);
  if (arenas_.contains(arena->id())) return {};
  CAIRN_TRY(socket.send(static_cast<std::uint32_t>(MessageKind::kArena), encode_number(arena->id()), arena->fd()));
  arenas_.emplace(arena->id(), arena->life());
  return {};
}

void SentState::forget_dropped_arenas(os::MessageSocket& socket) {
  std::erase_if(arenas_, [&socket](const auto& entry) {
    if (!entry.second.expired()) return false;
    return socket.send_at_once(static_cast<std::uint32_t>(MessageKind::kForgetArena), encode_number(entry.first));
  });
}

Result<std::uint64_t> SentState::send_layout(os::MessageSocket& socket, const StagedLayout& layout) {
  ++uses_;
  const auto found = std::find_if(layouts_.begin(), layouts_.end(),
                                  [&layout](const Layout& sent) { return sent.used != 0 && sent.id == layout.id; });
  const auto oldest = std::min_element(layouts_.begin(), layouts_.end(),
                                       [](const Layout& a, const Layout& b) { return a.used < b.used; });
  const auto place = found != layouts_.end() ? found : oldest;
  const auto slot = static_cast<std::uint64_t>(place - layouts_.begin());
  if (found == layouts_.end()) {
    CAIRN_TRY_ASSIGN(const std::string message, encode_layout(slot, layout));
    CAIRN_TRY(socket.send(static_cast<std::uint32_t>(MessageKind::kLayout), message));
  }
  *place = {layout.id, uses_};
  return slot;
}

}  // namespace cairn::writer
