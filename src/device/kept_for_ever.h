// keep_for_ever(): leaves memory to a device that may write into the memory at any time. The memory is never freed, and
// stays reachable for leak checkers.
#pragma once

#include <atomic>
#include <memory>

namespace cairn::device {

// `Node` has a member `Node* next_kept`. Thread-safe; allocates nothing.
template <typename Node>
void keep_for_ever(std::unique_ptr<Node> node) noexcept {
  static std::atomic<Node*> kept{nullptr};
  Node* const added = node.release();
  added->next_kept = kept.load();
  while (!kept.compare_exchange_weak(added->next_kept, added)) {
  }
}

}  // namespace cairn::device
