#include "os/gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>
#include <thread>

namespace cairn::os {
namespace {

TEST(Gate, RefusesPassesAfterClose) {
  Gate gate;
  EXPECT_TRUE(Gate::Pass(&gate).is_granted());
  gate.close();
  EXPECT_FALSE(Gate::Pass(&gate).is_granted());
}

TEST(Gate, GrantsEveryPassIfThereIsNone) { EXPECT_TRUE(Gate::Pass(nullptr).is_granted()); }

TEST(Gate, WaitsForTheThreadInsideToLeave) {
  Gate gate;
  std::optional<Gate::Pass> inside;
  inside.emplace(&gate);
  std::atomic<bool> has_left{false};
  std::future<bool> closed = std::async(std::launch::async, [&] {
    gate.close();
    return has_left.load();
  });
  while (Gate::Pass(&gate).is_granted()) std::this_thread::yield();  // until the gate is closed
  has_left = true;
  inside.reset();
  EXPECT_TRUE(closed.get());
}

}  // namespace
}  // namespace cairn::os
