#include "core/stream_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace cairn {
namespace {

TEST(StreamCopy, CopiesEveryByteAndNoneBeside) {
  std::vector<std::byte> source(1'200'000);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 31 + i / 251);
  for (const std::size_t size : {0U, 1U, 300U, 262'143U, 262'144U, 262'145U, 1'000'003U}) {
    for (const std::size_t shift : {0U, 1U, 63U, 64U, 100U}) {
      std::vector<std::byte> target(source.size() + 256, std::byte{0xEE});
      stream_copy(std::span(target).subspan(shift, size), std::span(source).subspan(7, size));
      EXPECT_TRUE(std::equal(source.begin() + 7, source.begin() + 7 + static_cast<std::ptrdiff_t>(size),
                             target.begin() + static_cast<std::ptrdiff_t>(shift)))
          << size << " bytes, " << shift << " from the line";
      const auto is_untouched = [](std::byte byte) { return byte == std::byte{0xEE}; };
      EXPECT_TRUE(std::all_of(target.begin(), target.begin() + static_cast<std::ptrdiff_t>(shift), is_untouched));
      EXPECT_TRUE(std::all_of(target.begin() + static_cast<std::ptrdiff_t>(shift + size), target.end(), is_untouched));
    }
  }
}

}  // namespace
}  // namespace cairn
