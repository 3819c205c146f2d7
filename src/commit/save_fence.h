// SaveFence: decides, once and for all, whether a save may still become the checkpoint after it was reported as failed.
//
// The thread that carries a save out may hang in the kernel, and come back at any time. Another thread gives the save
// up. Both ask here, so that they never disagree: a save that was given up before its decisive step never takes it.
//
// Thread-safe.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <mutex>

namespace cairn::commit {

class SaveFence {
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
  // The save is committed and, if durable, synced. False: it was given up in its decisive step. Then it cleans up only
  // if it knows that no other save has committed since.
  bool note_committed() {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kInDoubt) return false;
    state_ = State::kCommitted;
    return true;
  }

  enum class GivenUp : std::uint8_t {
    kForGood,    // it is not committed, and will not be
    kUnknown,    // the decisive step has begun: it may be committed, now or later
    kCommitted,  // it is committed
  };
  GivenUp give_up() {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kCommitted) return GivenUp::kCommitted;
    const bool has_begun = state_ == State::kDecisive || state_ == State::kInDoubt;
    state_ = has_begun ? State::kInDoubt : State::kGivenUp;
    return has_begun ? GivenUp::kUnknown : GivenUp::kForGood;
  }

 private:
  // kInDoubt: given up in the decisive step.
  enum class State : std::uint8_t { kOpen, kDecisive, kCommitted, kGivenUp, kInDoubt };
  std::mutex mutex_;
  State state_ = State::kOpen;
};

}  // namespace cairn::commit
