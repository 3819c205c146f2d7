// Turns: gives the actors of an execution their turns. For tests (interleavings.h).
#pragma once

#include <cairn/result.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/fingerprint.h"
#include "run/testing/fiber.h"

namespace cairn::run {

struct Turn {
  enum class Kind : std::uint8_t { kRun, kFail, kDie };
  std::size_t actor = 0;
  Kind kind = Kind::kRun;
};

// Gives the actors of one execution their turns. The actors are fibers of one thread: a switch takes no system call but
// that of the signal mask, and nothing runs at the same time.
class Turns {
 public:
  Turns() = default;
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;
  ~Turns() { end(); }

  // Runs each actor up to its first call.
  void begin(std::vector<std::function<void()>> actors) {
    for (std::function<void()>& run : actors) {
      actors_.push_back(std::make_unique<Actor>());
      Actor& actor = *actors_.back();
      actor.run = std::move(run);
      actor.fiber.start([&actor] {
        actor.run();
        actor.has_ended = true;
      });
    }
  }

  // The turns that are possible now.
  std::vector<Turn> possible() const {
    std::vector<Turn> turns;
    for (std::size_t i = 0; i < actors_.size(); ++i) {
      const Actor& actor = *actors_[i];
      if (actor.has_ended) continue;
      if (actor.wanted == nullptr || !locked_.contains(actor.wanted)) turns.push_back({i, Turn::Kind::kRun});
      if (actor.may_fail && !has_failed_) turns.push_back({i, Turn::Kind::kFail});
      if (actor.locks != 0) turns.push_back({i, Turn::Kind::kDie});
    }
    return turns;
  }

  void give(Turn turn) {
    Actor& actor = *actors_[turn.actor];
    actor.is_dead = actor.is_dead || turn.kind == Turn::Kind::kDie;
    actor.fails = turn.kind == Turn::Kind::kFail;
    has_failed_ = has_failed_ || actor.fails;
    actor.fiber.resume();
  }

  bool have_ended() const {
    return std::all_of(actors_.begin(), actors_.end(), [](const auto& actor) { return actor->has_ended; });
  }

  // The calls of the actors, with their answers.
  std::string history() const {
    std::string text;
    for (const auto& actor : actors_) text += actor->history + (actor->is_dead ? "dead\n" : "\n");
    return text;
  }

  // Every further call fails: the actors end.
  void end() {
    for (const auto& actor : actors_) {
      actor->is_dead = true;
      while (!actor->has_ended) actor->fiber.resume();
    }
  }

  // For the storages of the actors. `wanted`: the disk that the call locks, else null.
  Result<void> await_turn(std::size_t i, const void* wanted, bool may_fail) {
    Actor& actor = *actors_[i];
    actor.wanted = wanted;
    actor.may_fail = may_fail;
    if (!actor.is_dead) actor.fiber.pause();
    if (actor.is_dead) return Error(ErrorCode::kUnavailable, "injected: the process is gone");
    if (!actor.fails) return {};
    actor.history += "failed ";
    return Error(ErrorCode::kUnavailable, "injected: no answer");
  }
  bool is_dead(std::size_t i) const { return actors_[i]->is_dead; }
  void note(std::size_t i, std::string_view call, std::string_view answer) {
    std::string& history = actors_[i]->history;
    history.append(call).append(answer);
    if (history.size() > 4096) history = fingerprint_text(history);
  }
  void note_lock(std::size_t i, const void* disk, bool holds) {
    if (holds) locked_.insert(disk);
    if (!holds) locked_.erase(disk);
    actors_[i]->locks += holds ? 1 : -1;
  }

  static std::string fingerprint_text(std::string_view text) {
    const Fingerprint found = fingerprint_of({text});
    return std::to_string(found.high) + "." + std::to_string(found.low) + " ";
  }

 private:
  struct Actor {
    std::function<void()> run;
    Fiber fiber;
    bool fails = false;
    std::atomic<bool> is_dead = false;  // the thread of a lease reads it
    bool has_ended = false;
    bool may_fail = false;
    const void* wanted = nullptr;
    int locks = 0;
    std::string history;
  };

  std::vector<std::unique_ptr<Actor>> actors_;
  std::set<const void*> locked_;
  bool has_failed_ = false;
};

}  // namespace cairn::run
