// The events of conversions on real files.
#include <cairn/convert.h>
#include <cairn/events.h>
#include <cairn/save.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using Kinds = std::vector<EventKind>;
using enum EventKind;

class ConvertEvents : public testing::TestWithParam<CheckpointFormat> {
 protected:
  static ConvertOptions options() {
    ConvertOptions options;
    options.to = GetParam();
    return options;
  }
  fs::path target() const {
    const fs::path name = scratch_.path() / "step-41";
    return GetParam() == CheckpointFormat::kTorchSave ? fs::path(name.string() + ".pt") : name;
  }
  static Kinds kinds_in(const std::vector<Event>& events) {
    Kinds kinds;
    for (const Event& event : events) kinds.push_back(event.kind);
    return kinds;
  }

  storage::ScratchDirectory scratch_;
  fs::path source_ = scratch_.path() / "step-40";
};

TEST_P(ConvertEvents, StepsOfAConversion) {
  float memory[4] = {1, 2, 3, 4};
  StateDict state;
  ASSERT_TRUE(state.add_tensor("w", TensorView::contiguous(memory, DType::kFloat32, {4})));
  ASSERT_TRUE(save(source_, state));
  EventQueue queue(100);
  const auto report = convert(source_, target(), options());
  ASSERT_TRUE(report) << report.error().what();
  const std::vector<Event> events = queue.take(std::chrono::milliseconds(0));
  ASSERT_EQ(kinds_in(events), (Kinds{kBegun, kPlanned, kWritten, kCommitted}));
  for (const Event& event : events) {
    EXPECT_EQ(event.operation, EventOperation::kConvert);
    EXPECT_EQ(event.directory, target().string());
    EXPECT_EQ(event.step, 41u);
  }
  EXPECT_GT(events[2].bytes, 0u);
  EXPECT_EQ(events[3].bytes, report->bytes_written);
}

TEST_P(ConvertEvents, CauseOfAFailedConversion) {
  EventQueue queue(100);
  const auto report = convert(source_, target(), options());
  ASSERT_FALSE(report);
  const std::vector<Event> events = queue.take(std::chrono::milliseconds(0));
  ASSERT_EQ(kinds_in(events), (Kinds{kBegun, kFailed}));
  EXPECT_STREQ(events[1].cause->what(), report.error().what());
}

INSTANTIATE_TEST_SUITE_P(ByTarget, ConvertEvents,
                         testing::Values(CheckpointFormat::kDcp, CheckpointFormat::kSafetensors,
                                         CheckpointFormat::kTorchSave),
                         [](const auto& instance) {
                           return "Format" + std::to_string(static_cast<int>(instance.param));
                         });

}  // namespace
}  // namespace cairn
