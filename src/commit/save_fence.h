// SaveFence: decides whether a save that was reported as failed may still become the checkpoint. The decision is final.
//
// The thread that carries the save out may hang in the kernel and resume at any time. Meanwhile another thread gives
// the save up. Both threads call the fence, and therefore agree: after give_up(), the decisive step is refused unless
// the step has begun before.
//
// Thread-safe.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <mutex>

namespace cairn::commit {

class SaveFence {
 public:
  // Called right before the decisive step. The coordinator's decisive step is the rename of `.metadata`. The decisive
  // step of the remaining ranks is the publishing of files, or the lease of a rank without files. After that step the
  // coordinator may commit at any time. kCancelled: the save was given up, and must stop.
  Result<void> begin_decisive_step() {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kGivenUp) {
      return Error(ErrorCode::kCancelled, "the save was given up while a call into the storage hung");
    }
    if (state_ == State::kOpen) state_ = State::kDecisive;
    return {};
  }
  // The save is committed and, if durable, synced. False: the save was given up during its decisive step. The caller
  // then cleans up only under the directory's lock.
  bool note_committed() {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kInDoubt) return false;
    state_ = State::kCommitted;
    return true;
  }

  enum class GivenUp : std::uint8_t {
    kForGood,    // the save is not committed, and will not be
    kUnknown,    // the decisive step has begun: the save may be committed, now or later
    kCommitted,  // the save is committed
  };
  GivenUp give_up() {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kCommitted) return GivenUp::kCommitted;
    const bool has_begun = state_ == State::kDecisive || state_ == State::kInDoubt;
    state_ = has_begun ? State::kInDoubt : State::kGivenUp;
    return has_begun ? GivenUp::kUnknown : GivenUp::kForGood;
  }

 private:
  // kInDoubt: given up during the decisive step.
  enum class State : std::uint8_t { kOpen, kDecisive, kCommitted, kGivenUp, kInDoubt };
  std::mutex mutex_;
  State state_ = State::kOpen;
};

}  // namespace cairn::commit
