#include "os/umask.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

namespace cairn::os {
namespace {

TEST(Umask, IsReadAndUnchanged) {
  const mode_t before = umask(027);
  EXPECT_EQ(current_umask(), 027u);
  EXPECT_EQ(umask(0), 027u);
  EXPECT_EQ(current_umask(), 0u);
  umask(before);
}

}  // namespace
}  // namespace cairn::os
