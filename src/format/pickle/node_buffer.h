// NodeBuffer: growing memory for nodes. Growing keeps the nodes and does not initialise the new memory.
//
// One thread at a time. Growing moves the nodes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "format/pickle/node.h"

namespace cairn::pickle {

class NodeBuffer {
 public:
  Node* data() noexcept { return nodes_.get(); }
  const Node* data() const noexcept { return nodes_.get(); }
  Node& operator[](std::size_t index) noexcept { return nodes_[index]; }
  const Node& operator[](std::size_t index) const noexcept { return nodes_[index]; }
  std::size_t capacity() const noexcept { return capacity_; }

  // Grows to at least `least` nodes, and at least doubles the capacity. False if the new capacity would exceed `most`
  // nodes.
  bool grow(std::size_t least, std::size_t most) {
    constexpr std::size_t kFirst = 512;
    const std::size_t capacity = std::max({kFirst, 2 * capacity_, least});
    if (capacity > most) return false;
    // realloc() moves large blocks by their page tables, without a copy.
    void* memory = std::realloc(static_cast<void*>(nodes_.get()), capacity * sizeof(Node));
    if (memory == nullptr) throw std::bad_alloc();
    (void)nodes_.release();
    nodes_.reset(static_cast<Node*>(memory));
    capacity_ = capacity;
    return true;
  }

  // Frees the memory behind the first `count` nodes.
  void shrink(std::size_t count) {
    if (count >= capacity_ || count == 0) return;
    void* memory = std::realloc(static_cast<void*>(nodes_.get()), count * sizeof(Node));
    if (memory == nullptr) return;
    (void)nodes_.release();
    nodes_.reset(static_cast<Node*>(memory));
    capacity_ = count;
  }

 private:
  struct Free {
    void operator()(Node* memory) const { std::free(static_cast<void*>(memory)); }
  };
  std::unique_ptr<Node[], Free> nodes_;
  std::size_t capacity_ = 0;
};

}  // namespace cairn::pickle
