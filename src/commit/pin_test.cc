#include "commit/pin.h"

#include <gtest/gtest.h>

#include <optional>

#include "commit/testing/one_save.h"
#include "storage/testing/model_storage.h"

namespace cairn::commit {
namespace {

TEST(Pin, IsRemovedByOneCallOnly) {
  storage::ModelStorage disk;
  commit_one(disk, save_number(1));
  EXPECT_FALSE(unpin(disk).value());
  ASSERT_TRUE(pin(disk, "of the paper"));
  EXPECT_EQ(note_of_pin(disk).value(), "of the paper");
  EXPECT_TRUE(unpin(disk).value());
  EXPECT_EQ(note_of_pin(disk).value(), std::nullopt);
  EXPECT_FALSE(unpin(disk).value());
}

}  // namespace
}  // namespace cairn::commit
