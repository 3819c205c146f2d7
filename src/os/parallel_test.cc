#include "os/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

namespace cairn::os {
namespace {

TEST(Parallel, RunsEveryWorkerOnce) {
  std::atomic<std::size_t> seen{0};
  const auto result = run_parallel(7, {}, [&](std::size_t worker, StopFlag&) -> Result<void> {
    seen += std::size_t{1} << worker;
    return {};
  });
  EXPECT_TRUE(result);
  EXPECT_EQ(seen, 127u);
}

TEST(Parallel, OneFailureStopsTheOthers) {
  const auto result = run_parallel(3, {}, [&](std::size_t worker, StopFlag& stop) -> Result<void> {
    if (worker == 1) return Error(ErrorCode::kNoSpace, "full");
    while (!stop.is_set()) std::this_thread::yield();
    return {};
  });
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::kNoSpace);
}

TEST(Parallel, PollsTheCallersInterrupt) {
  int asked = 0;
  const auto result = run_parallel(
      2, [&asked] { return ++asked == 2; },
      [](std::size_t, StopFlag& stop) -> Result<void> {
        while (!stop.is_set()) std::this_thread::yield();
        return {};
      });
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::kCancelled);
}

TEST(Parallel, AnExceptionOfAWorkerIsAnError) {
  const auto result =
      run_parallel(1, {}, [](std::size_t, StopFlag&) -> Result<void> { throw std::runtime_error("no"); });
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::kInternal);
}

}  // namespace
}  // namespace cairn::os
