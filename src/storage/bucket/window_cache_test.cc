#include "storage/bucket/window_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace cairn::storage {
namespace {

class Windows : public testing::Test {
 protected:
  Windows() {
    for (std::size_t i = 0; i < text_.size(); ++i) text_[i] = static_cast<char>(i * 7 + i / 251);
  }
  std::string read(std::uint64_t file, std::uint64_t offset, std::size_t length) {
    std::string bytes(length, '\0');
    const auto fetch = [this](std::uint64_t begin, std::span<std::byte> target) -> Result<void> {
      ++fetches_;
      std::memcpy(target.data(), text_.data() + begin, target.size());
      return {};
    };
    EXPECT_TRUE(cache_.read(file, text_.size(), offset, std::as_writable_bytes(std::span(bytes)), fetch));
    return bytes;
  }

  WindowCache cache_;
  std::string text_ = std::string(3 * WindowCache::kWindowBytes + 1000, '\0');
  int fetches_ = 0;
};

TEST_F(Windows, NeighbouringReadsCostOneFetch) {
  const std::uint64_t end = text_.size();
  for (const std::uint64_t back : {8, 100, 5000, 200'000}) {
    EXPECT_EQ(read(1, end - back, 8), text_.substr(end - back, 8));
  }
  EXPECT_EQ(fetches_, 1);
}

TEST_F(Windows, GiveTheBytesOfTheFile) {
  for (std::uint64_t offset = 0; offset + 3000 <= text_.size(); offset += 2999) {
    ASSERT_EQ(read(1, offset, 3000), text_.substr(offset, 3000)) << offset;
  }
  EXPECT_EQ(fetches_, 4);
  EXPECT_EQ(read(1, 0, text_.size()), text_);
  EXPECT_EQ(fetches_, 4);
}

TEST_F(Windows, FilesNeverShareAWindow) {
  const std::uint64_t one = cache_.new_file();
  const std::uint64_t two = cache_.new_file();
  (void)read(one, 0, 10);
  text_.assign(text_.size(), 'x');
  EXPECT_EQ(read(two, 0, 10), std::string(10, 'x'));
  cache_.forget(one);
  EXPECT_EQ(read(one, 0, 10), std::string(10, 'x'));
  EXPECT_EQ(fetches_, 3);
}

TEST_F(Windows, TheLeastRecentlyUsedIsDropped) {
  (void)read(1, 0, 10);
  for (std::uint64_t file = 2; file <= WindowCache::kWindowsMax; ++file) (void)read(file, 0, 10);
  (void)read(1, 0, 10);
  (void)read(WindowCache::kWindowsMax + 1, 0, 10);
  fetches_ = 0;
  (void)read(1, 0, 10);
  EXPECT_EQ(fetches_, 0);
  (void)read(2, 0, 10);
  EXPECT_EQ(fetches_, 1);
}

}  // namespace
}  // namespace cairn::storage
