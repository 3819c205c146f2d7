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

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "run/testing/turns.h"

namespace cairn::run {

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
