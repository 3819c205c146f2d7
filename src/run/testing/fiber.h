// Fiber: a function with a stack of its own, which its caller resumes and which pauses itself. For tests.
//
// One thread at a time. A fiber must have ended before it is destroyed. No exception may leave its function.
#pragma once

#include <sanitizer/common_interface_defs.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include <sanitizers.h>

namespace cairn::run {

class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs `body` up to its first pause.
  void start(std::function<void()> body) {
    body_ = std::move(body);
    stack_ = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
    getcontext(&fiber_);
    fiber_.uc_stack.ss_sp = stack_.get();
    fiber_.uc_stack.ss_size = kStackBytes;
    fiber_.uc_link = &caller_;
    const auto address = reinterpret_cast<std::uintptr_t>(this);
    makecontext(&fiber_, reinterpret_cast<void (*)()>(&Fiber::run), 2, static_cast<unsigned>(address >> 32U),
                static_cast<unsigned>(address));
    resume();
  }

  // Called outside the fiber: runs up to the next pause, or to the end.
  void resume() {
    begin_switch(&caller_fake_stack_, stack_.get(), kStackBytes);
    swapcontext(&caller_, &fiber_);
    end_switch(caller_fake_stack_, nullptr, nullptr);
  }

  // Called in the fiber.
  void pause() {
    begin_switch(&fiber_fake_stack_, caller_stack_, caller_stack_bytes_);
    swapcontext(&fiber_, &caller_);
    end_switch(fiber_fake_stack_, &caller_stack_, &caller_stack_bytes_);
  }

 private:
  static constexpr std::size_t kStackBytes = std::size_t{512} << 10;

  static void run(unsigned high, unsigned low) {
    auto* const fiber = reinterpret_cast<Fiber*>((static_cast<std::uintptr_t>(high) << 32U) | low);
    fiber->end_switch(nullptr, &fiber->caller_stack_, &fiber->caller_stack_bytes_);
    fiber->body_();
    begin_switch(nullptr, fiber->caller_stack_,
                 fiber->caller_stack_bytes_);  // null: the fiber's stack is left for good
  }

  // The address sanitizer must know the stack that runs.
  static void begin_switch(void** save, const void* stack, std::size_t bytes) {
    if constexpr (kAddressSanitized) __sanitizer_start_switch_fiber(save, stack, bytes);
  }
  static void end_switch(void* saved, const void** left, std::size_t* left_bytes) {
    if constexpr (kAddressSanitized) __sanitizer_finish_switch_fiber(saved, left, left_bytes);
  }

  std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;
  ucontext_t fiber_{};
  ucontext_t caller_{};
  void* caller_fake_stack_ = nullptr;
  void* fiber_fake_stack_ = nullptr;
  const void* caller_stack_ = nullptr;
  std::size_t caller_stack_bytes_ = 0;
};

}  // namespace cairn::run
