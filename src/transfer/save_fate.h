// SaveFate: decides, once and for all, whether a save may still become the checkpoint after it was reported as failed.
//
// The thread that carries a save out may hang in the kernel, and come back at any time. Another thread gives the save
// up. Both ask here, so that they never disagree: a save that was given up before its decisive step never takes it.
//
// Thread-safe.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <mutex>

namespace cairn::transfer {

class SaveFate {
 public:
  // Right before the decisive step: the coordinator's rename of `.metadata`; on another rank the publishing of its
  // files, after which the coordinator may commit at any time. kCancelled: the save was given up, and must not go on.
  Result<void> begin_decisive_step() {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kGivenUp) {
      return Error(ErrorCode::kCancelled, "the save was given up while a call to its storage hung");
    }
    if (state_ == State::kOpen) state_ = State::kDecisive;
    return {};
  }
  // The save is committed and, if durable, synced; what is left to do is to clean up.
  void note_committed() {
    const std::lock_guard lock(mutex_);
    state_ = State::kCommitted;
  }

  enum class GivenUp : std::uint8_t {
    kForGood,    // it is not committed, and will not be
    kUnknown,    // the decisive step has begun: it may be committed, now or later
    kCommitted,  // it is committed
  };
  GivenUp give_up() {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kCommitted) return GivenUp::kCommitted;
    if (state_ == State::kDecisive) return GivenUp::kUnknown;
    state_ = State::kGivenUp;
    return GivenUp::kForGood;
  }

 private:
  enum class State : std::uint8_t { kOpen, kDecisive, kCommitted, kGivenUp };
  std::mutex mutex_;
  State state_ = State::kOpen;
};

}  // namespace cairn::transfer
