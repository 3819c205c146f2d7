// PageBufferPool: page buffers of one size, for threads that need a buffer for a short time. A returned buffer is used
// again: the memory is a buffer for each thread that works at the same time, and the memory's pages are mapped once.
//
// Thread-safe. Outlives its loans.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "os/page_buffer.h"

namespace cairn::os {

class PageBufferPool {
 public:
  explicit PageBufferPool(std::size_t buffer_bytes) : buffer_bytes_(buffer_bytes) {}
  PageBufferPool(const PageBufferPool&) = delete;
  PageBufferPool& operator=(const PageBufferPool&) = delete;

  // A borrowed buffer. The destructor returns the buffer.
  class Loan {
   public:
    Loan(PageBufferPool& pool, std::unique_ptr<PageBuffer> buffer) : pool_(pool), buffer_(std::move(buffer)) {}
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    ~Loan() { pool_.put_back(std::move(buffer_)); }
    PageBuffer& buffer() { return *buffer_; }

   private:
    PageBufferPool& pool_;
    std::unique_ptr<PageBuffer> buffer_;
  };

  // The contents of the buffer are undefined.
  Loan borrow() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<PageBuffer> buffer = std::move(idle_.back());
        idle_.pop_back();
        return Loan(*this, std::move(buffer));
      }
      idle_.reserve(++lent_or_idle_);  // put_back() allocates nothing
    }
    return Loan(*this, std::make_unique<PageBuffer>(buffer_bytes_));
  }

 private:
  void put_back(std::unique_ptr<PageBuffer> buffer) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(buffer));
  }

  std::size_t buffer_bytes_;
  std::mutex mutex_;
  std::size_t lent_or_idle_ = 0;  // buffers
  std::vector<std::unique_ptr<PageBuffer>> idle_;
};

}  // namespace cairn::os
