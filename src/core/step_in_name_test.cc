#include "core/step_in_name.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(StepInName, TakesTheLastNumber) {
  EXPECT_EQ(step_in_name("runs/7/step-120"), 120u);
  EXPECT_EQ(step_in_name("epoch_3_step_0042_final"), 42u);
  EXPECT_EQ(step_in_name("120"), 120u);
}

TEST(StepInName, NoNumberOrOneThatIsTooLarge) {
  EXPECT_EQ(step_in_name("runs/7/latest"), std::nullopt);
  EXPECT_EQ(step_in_name(""), std::nullopt);
  EXPECT_EQ(step_in_name("step-999999999999999999"), 999999999999999999u);
  EXPECT_EQ(step_in_name("step-1000000000000000000"), std::nullopt);
}

}  // namespace
}  // namespace cairn
