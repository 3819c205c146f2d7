#include "core/step_in_name.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(StepInName, TakesTheLastNumber) {
  EXPECT_EQ(step_in_name("runs/7/step-120"), 120u);
  EXPECT_EQ(step_in_name("epoch_3_step_0042_final"), 42u);
  EXPECT_EQ(step_in_name("120"), 120u);
}

TEST(StepInName, TakesTheNumberAfterStep) {
  EXPECT_EQ(step_in_name("epoch=3-step=1200-v1.ckpt"), 1200u);
  EXPECT_EQ(step_in_name("step-7-of-job-12"), 7u);
  EXPECT_EQ(step_in_name("global_step100_2"), 100u);
  EXPECT_EQ(step_in_name("Step 5, rank 3"), 5u);
  EXPECT_EQ(step_in_name("step-3-step-4-final2"), 4u);
  EXPECT_EQ(step_in_name("steps_100_bs512"), 100u);
  EXPECT_EQ(step_in_name("epoch=3-step=1200-train_loss_step=0.25.ckpt"), 1200u);
  EXPECT_EQ(step_in_name("step=1200-loss_step=1.05-v1.ckpt"), 1200u);
  EXPECT_EQ(step_in_name("model--val_loss=0.25-step=100-consumed_samples=25600.0-last"), 100u);
  EXPECT_EQ(step_in_name("step=100.0-last.ckpt"), 100u);
  EXPECT_EQ(step_in_name("step--100"), 100u);
  EXPECT_EQ(step_in_name("100-step"), 100u);
  EXPECT_EQ(step_in_name("step-1000000000000000000-2"), std::nullopt);
}

TEST(StepInName, LeavesTheVersionOfLightning) {
  EXPECT_EQ(step_in_name("last-v1.ckpt"), std::nullopt);
  EXPECT_EQ(step_in_name("03-1200-v1.ckpt"), 1200u);
  EXPECT_EQ(step_in_name("model-v3"), 3u);
  EXPECT_EQ(step_in_name("1200-v.ckpt"), 1200u);
}

TEST(StepInName, NoNumberOrOneThatIsTooLarge) {
  EXPECT_EQ(step_in_name("runs/7/latest"), std::nullopt);
  EXPECT_EQ(step_in_name(""), std::nullopt);
  EXPECT_EQ(step_in_name("step-999999999999999999"), 999999999999999999u);
  EXPECT_EQ(step_in_name("step-1000000000000000000"), std::nullopt);
}

}  // namespace
}  // namespace cairn
