#include <cairn/checkpoint.h>
#include <cairn/save.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

class ReadValue : public testing::Test {
 protected:
  void SetUp() override {
    const std::vector<float> weights(4);
    StateDict state;
    state.add_tensor("w", TensorView::contiguous(weights.data(), DType::kFloat32, {4})).value();
    state.add_value("step", 7).value();
    state.add_value("rate", 0.5).value();
    state.add_value("name", "run 1").value();
    state.add_value("shuffled", true).value();
    save(directory_, state).value();
  }
  storage::ScratchDirectory scratch_;
  std::filesystem::path directory_ = scratch_.path() / "checkpoint";
};

TEST_F(ReadValue, GivesTheTypeOfTheCaller) {
  EXPECT_EQ(read_value<std::int64_t>(directory_, "step").value(), 7);
  EXPECT_EQ(read_value<double>(directory_, "rate").value(), 0.5);
  EXPECT_EQ(read_value<double>(directory_, "step").value(), 7.0);
  EXPECT_EQ(read_value<std::string>(directory_, "name").value(), "run 1");
  EXPECT_EQ(read_value<bool>(directory_, "shuffled").value(), true);
  EXPECT_EQ(read_value(directory_, "step").value(), Value(7));
}

TEST_F(ReadValue, AnotherTypeIsAnErrorWithTheKey) {
  const auto wrong = read_value<std::int64_t>(directory_, "rate");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(wrong.error().key(), "rate");
  EXPECT_EQ(wrong.error().actual(), "0.5");
  EXPECT_FALSE(read_value<std::int64_t>(directory_, "shuffled"));
}

TEST_F(ReadValue, AMissingKeyAndATensorAreErrors) {
  EXPECT_EQ(read_value(directory_, "epoch").error().code(), ErrorCode::kMissingKey);
  EXPECT_EQ(read_value<std::int64_t>(directory_, "w").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(read_value(scratch_.path() / "nowhere", "step").error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cairn
