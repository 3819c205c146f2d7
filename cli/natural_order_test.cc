#include "natural_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace cairn::cli {
namespace {

TEST(NaturalOrder, CountsNumbersOfAnyLength) {
  const std::vector<std::string> sorted{"",
                                        "epoch-1-step-9",
                                        "epoch-1-step-10",
                                        "epoch-2-step-1",
                                        "step",
                                        "step-",
                                        "step-0",
                                        "step-007",
                                        "step-7",
                                        "step-8",
                                        "step-10",
                                        "step-10a",
                                        "step-11",
                                        "step-99999999999999999999998",
                                        "step-99999999999999999999999",
                                        "stop",
                                        "\xc3\xa9"};
  std::vector<std::string> shuffled(sorted.rbegin(), sorted.rend());
  std::sort(shuffled.begin(), shuffled.end(), natural_less);
  EXPECT_EQ(shuffled, sorted);
}

TEST(NaturalOrder, OrdersNoNameBeforeAnEqualName) {
  for (const char* name : {"", "a", "7", "007", "step-7"}) EXPECT_FALSE(natural_less(name, name)) << name;
  EXPECT_NE(natural_less("7", "07"), natural_less("07", "7"));
}

}  // namespace
}  // namespace cairn::cli
