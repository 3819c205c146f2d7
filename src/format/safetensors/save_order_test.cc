#include "format/safetensors/save_order.h"

#include <gtest/gtest.h>

#include <string>

namespace cairn::safetensors {
namespace {

const std::string kJobId = "0123456789abcdef0123456789abcdef";

TEST(SaveOrder, IsReadAsRendered) {
  for (const SaveOrder& order : {SaveOrder{kJobId, 0, 0}, SaveOrder{kJobId, 1'700'000'000'000'000'000, 3}}) {
    EXPECT_EQ(read_save_order(render_save_order(order)), order);
  }
}

TEST(SaveOrder, AnyOtherTextIsNoOrder) {
  const std::string job = " of job " + kJobId;
  for (const std::string& text :
       {std::string(), std::string("save 3"), "save 3" + job, "save 3" + job + " since ", "save 3" + job + " since -1",
        "save 03" + job + " since 1", " save 3" + job + " since 1", "save 3" + job + " since 1 ",
        std::string("save 3 of job 0123 since 1"), "save 3 of job " + std::string(32, 'g') + " since 1",
        "save 3" + job + " since 18446744073709551615", "save 18446744073709551616" + job + " since 1"}) {
    EXPECT_FALSE(read_save_order(text)) << text;
  }
}

}  // namespace
}  // namespace cairn::safetensors
