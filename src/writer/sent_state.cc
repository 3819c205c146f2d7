#include "writer/sent_state.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>

#include "os/memory_file.h"

namespace cairn::writer {
namespace {

// The layout of a coordinator grows with the chunks of all ranks, beyond the longest message.
constexpr std::size_t kLayoutInMessageMax = std::size_t{1} << 20;

Result<void> send_layout_bytes(os::MessageSocket& socket, std::string_view layout) {
  constexpr auto kKind = static_cast<std::uint32_t>(MessageKind::kLayout);
  if (layout.size() <= kLayoutInMessageMax) return socket.send(kKind, layout);
  CAIRN_TRY_ASSIGN(os::MemoryFile memory, os::MemoryFile::create("cairn-layout"));
  CAIRN_TRY(memory.resize(layout.size()));
  CAIRN_TRY(memory.populate(0, layout.size()));
  std::memcpy(memory.bytes().data(), layout.data(), layout.size());
  return socket.send(kKind, encode_number(layout.size()), memory.fd());
}

}  // namespace

Result<void> SentState::send_arena(os::MessageSocket& socket, const std::shared_ptr<staging::Arena>& arena) {
  forget_dropped_arenas(socket);
  if (arenas_.contains(arena->id())) return {};
  assert(arena->is_shared());
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
    CAIRN_TRY(send_layout_bytes(socket, message));
  }
  *place = {layout.id, uses_};
  return slot;
}

}  // namespace cairn::writer
