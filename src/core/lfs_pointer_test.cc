#include "core/lfs_pointer.h"

#include <gtest/gtest.h>

#include <span>
#include <string>

namespace cairn {
namespace {

bool is_pointer(const std::string& text) {
  return lfs_pointer_error(MemorySource(std::as_bytes(std::span(text)))).has_value();
}

TEST(LfsPointer, IsKnownByItsFirstLine) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, 'a') + "\nsize 12345\n";
  EXPECT_TRUE(is_pointer(pointer));
  EXPECT_FALSE(is_pointer(pointer.substr(0, 20)));
  EXPECT_FALSE(is_pointer(pointer.substr(1)));
  EXPECT_FALSE(is_pointer(pointer + std::string(1024, ' ')));
  EXPECT_FALSE(is_pointer(""));
}

}  // namespace
}  // namespace cairn
