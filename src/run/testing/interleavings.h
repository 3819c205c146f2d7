// Interleavings: all orders in which the storage calls of several actors can follow each other, with faults. For tests.
//
// Each actor is a fiber, and one runs at a time: before each call into its storage that another actor could see, an
// actor waits until the explorer gives it a turn. An execution is determined by its turns. The explorer repeats the
// execution with other turns until it has given each possible turn in each state. Two states are one if the disks are
// equal, and if each actor has made the same calls with the same answers: then it goes on in the same way.
//
// Faults are turns too: one call of an execution may fail, and an actor may die before a call. A death is tried only
// while the actor holds a lock, because elsewhere it changes nothing: to the others, an actor that gets no turn until
// they have ended looks dead.
#pragma once

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
#include "storage/testing/view_storage.h"

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
      actor.fiber.start([this, &actor] {
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

// A disk as an actor sees it. Calls that no other actor could notice take no turn: reads of data files, which never
// change, and everything in private folders.
class ScheduledStorage final : public storage::ViewStorage {
 public:
  ScheduledStorage(Turns& turns, std::size_t actor, storage::Storage& disk, bool may_fail)
      : ViewStorage(disk), turns_(turns), actor_(actor), disk_(disk), may_fail_(may_fail) {}

  Result<std::unique_ptr<storage::StorageLock>> lock() override {
    CAIRN_TRY(turns_.await_turn(actor_, &disk_, may_fail_));
    CAIRN_TRY_ASSIGN(auto lock, disk_.lock());
    return std::unique_ptr<storage::StorageLock>(std::make_unique<Lock>(*this, std::move(lock)));
  }
  Result<void> make_folder(std::string_view name) override {
    return change("make_folder ", name, [&] { return disk_.make_folder(name); });
  }
  Result<void> remove_folder(std::string_view name) override {
    return change("remove_folder ", name, [&] { return disk_.remove_folder(name); });
  }
  Result<std::unique_ptr<storage::WritableFile>> create(std::string_view name,
                                                        const storage::CreateOptions& options) override {
    if (turns_.is_dead(actor_)) return gone();
    return disk_.create(name, options);
  }
  Result<void> create_whole(std::string_view name, std::string_view bytes, Durability durability) override {
    return change("create ", name, [&] { return disk_.create_whole(name, bytes, durability); });
  }
  Result<std::unique_ptr<storage::ReadableFile>> open(std::string_view name, bool follow_links) const override {
    const bool takes_turn = is_shared(name) && !name.ends_with(".distcp");
    if (takes_turn) CAIRN_TRY(turns_.await_turn(actor_, nullptr, may_fail_));
    if (turns_.is_dead(actor_)) return gone();
    auto file = disk_.open(name, follow_links);
    if (takes_turn) note("open ", name, file ? content_of(**file) : file.error().what());
    return file;
  }
  Result<std::vector<storage::ListedFile>> list(std::string_view folder) const override {
    if (folder.empty()) CAIRN_TRY(turns_.await_turn(actor_, nullptr, may_fail_));
    if (turns_.is_dead(actor_)) return gone();
    auto files = disk_.list(folder);
    std::string names;
    for (const auto& file : files ? *files : std::vector<storage::ListedFile>()) names += file.name + " ";
    if (folder.empty()) note("list ", folder, names);
    return files;
  }
  Result<void> publish(std::string_view from, std::string_view to) override {
    return change("publish ", to, [&] { return disk_.publish(from, to); });
  }
  Result<void> replace(std::string_view from, std::string_view to) override {
    return change("replace ", to, [&] { return disk_.replace(from, to); });
  }
  Result<void> remove(std::string_view name) override {
    return change("remove ", name, [&] { return disk_.remove(name); });
  }
  Result<void> sync(std::string_view folder) override {
    return change("sync ", folder, [&] { return disk_.sync(folder); });
  }
  Result<void> rewrite(std::string_view name, std::string_view bytes) override {  // of the lease's thread
    if (turns_.is_dead(actor_)) return gone();
    return disk_.rewrite(name, bytes);
  }
  Result<void> touch(std::string_view name) override {
    if (turns_.is_dead(actor_)) return gone();
    return disk_.touch(name);
  }
  Result<double> touched_at(std::string_view name) const override {
    const bool takes_turn = is_shared(name) && !name.empty() && !name.ends_with(".distcp");
    if (takes_turn) CAIRN_TRY(turns_.await_turn(actor_, nullptr, may_fail_));
    if (turns_.is_dead(actor_)) return gone();
    auto time = disk_.touched_at(name);
    if (takes_turn) note("touched_at ", name, time ? "there" : time.error().what());
    return time;
  }

 private:
  class Lock final : public storage::StorageLock {
   public:
    Lock(ScheduledStorage& storage, std::unique_ptr<storage::StorageLock> lock)
        : turns_(storage.turns_), actor_(storage.actor_), disk_(&storage.disk_), lock_(std::move(lock)) {
      turns_.note_lock(actor_, disk_, true);
    }
    ~Lock() override {
      lock_.reset();
      turns_.note_lock(actor_, disk_, false);
    }
    bool is_held() const override { return lock_->is_held(); }

   private:
    Turns& turns_;
    std::size_t actor_;
    const void* disk_;
    std::unique_ptr<storage::StorageLock> lock_;
  };

  static bool is_shared(std::string_view name) { return name.find('/') == std::string_view::npos; }
  static Error gone() { return {ErrorCode::kUnavailable, "injected: the process is gone"}; }
  static std::string content_of(const storage::ReadableFile& file) {
    std::string bytes(file.size(), '\0');
    (void)file.read_at(0, std::as_writable_bytes(std::span(bytes)));
    return Turns::fingerprint_text(bytes);
  }
  void note(std::string_view call, std::string_view name, std::string_view answer) const {
    turns_.note(actor_, std::string(call) + std::string(name) + ": ", std::string(answer) + "; ");
  }
  template <typename Call>
  Result<void> change(std::string_view call, std::string_view name, Call do_call) const {
    const bool takes_turn = is_shared(name);
    if (takes_turn) CAIRN_TRY(turns_.await_turn(actor_, nullptr, may_fail_));
    if (turns_.is_dead(actor_)) return gone();
    Result<void> done = do_call();
    if (takes_turn) note(call, name, done ? "done" : done.error().what());
    return done;
  }

  Turns& turns_;
  std::size_t actor_;
  storage::Storage& disk_;
  bool may_fail_;
};

// An execution: its disks and its actors. Made anew for each execution.
class World {
 public:
  virtual ~World() = default;
  virtual std::vector<std::function<void()>> actors(Turns& turns) = 0;
  virtual std::string description() const = 0;  // of the disks
  // Called in each new state, with all actors waiting.
  virtual void check_state(bool have_ended) = 0;
  // Called if each living actor waits for a lock.
  virtual void check_deadlock() = 0;
  // Called with each seed for each description, in a world whose actors have died: may cut the power.
  virtual void check_disks(std::uint64_t seed) = 0;
};

struct Explored {
  std::size_t states = 0;
  std::size_t disks = 0;
  std::size_t executions = 0;
};

// Repeats the execution for a check that ends its world.
inline void check_disks_after(const std::function<std::unique_ptr<World>()>& make, const std::vector<Turn>& path,
                              std::uint64_t seed) {
  const std::unique_ptr<World> world = make();
  Turns turns;
  turns.begin(world->actors(turns));
  for (const Turn turn : path) turns.give(turn);
  turns.end();
  world->check_disks(seed);
}

// Explores all executions of the worlds that `make` returns, and checks the disks with the seeds from 1 to `seeds`.
// Stops early once `has_failed()`.
inline Explored explore(const std::function<std::unique_ptr<World>()>& make, std::uint64_t seeds,
                        const std::function<bool()>& has_failed) {
  Explored explored;
  std::set<std::string> states, disks;
  std::vector<std::vector<Turn>> waiting{{}};
  while (!waiting.empty() && !has_failed()) {
    std::vector<Turn> path = std::move(waiting.back());
    waiting.pop_back();
    ++explored.executions;
    const std::unique_ptr<World> world = make();
    Turns turns;
    turns.begin(world->actors(turns));
    for (const Turn turn : path) turns.give(turn);
    for (;;) {
      const std::vector<Turn> possible = turns.possible();
      const std::string description = world->description();
      if (!states.insert(Turns::fingerprint_text(description + turns.history())).second) break;
      world->check_state(turns.have_ended());
      if (disks.insert(Turns::fingerprint_text(description)).second) {
        for (std::uint64_t seed = 1; seed <= seeds; ++seed) check_disks_after(make, path, seed);
      }
      if (possible.empty() && !turns.have_ended()) world->check_deadlock();
      if (possible.empty() || has_failed()) break;
      for (std::size_t i = 1; i < possible.size(); ++i) {
        waiting.push_back(path);
        waiting.back().push_back(possible[i]);
      }
      turns.give(possible[0]);
      path.push_back(possible[0]);
    }
  }
  explored.states = states.size();
  explored.disks = disks.size();
  return explored;
}

}  // namespace cairn::run
