#include "data_file/brought_ranges.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace cairn::data_file {
namespace {

// A file that records the dropped ranges.
class DroppedFile : public storage::ReadableFile {
 public:
  std::uint64_t size() const override { return 1000; }
  Result<void> read_at(std::uint64_t, std::span<std::byte>) const override { return {}; }
  std::optional<DirectAlignment> direct_alignment() const override { return std::nullopt; }
  Result<void> read_direct_at(std::uint64_t, std::span<std::byte>) const override { return {}; }
  bool is_cached(std::uint64_t, std::uint64_t) const override { return false; }
  void drop_cached(std::uint64_t offset, std::uint64_t length) const override { dropped.emplace_back(offset, length); }

  mutable std::vector<std::pair<std::uint64_t, std::uint64_t>> dropped;
};

using DroppedRanges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

TEST(BroughtRanges, LeaveTheCacheAtTheEnd) {
  const DroppedFile file;
  {
    BroughtRanges ranges(100);
    ranges.add(file, 40, 60);
    ranges.add(file, 0, 40);
    EXPECT_TRUE(file.dropped.empty());
  }
  EXPECT_EQ(file.dropped, (DroppedRanges{{40, 60}, {0, 40}}));
}

TEST(BroughtRanges, OldestLeaveBeyondTheLimit) {
  const DroppedFile file;
  {
    BroughtRanges ranges(100);
    ranges.add(file, 0, 60);
    ranges.add(file, 60, 40);
    ranges.add(file, 100, 70);
    EXPECT_EQ(file.dropped, (DroppedRanges{{0, 60}, {60, 40}}));
    ranges.add(file, 170, 200);
    EXPECT_EQ(file.dropped.size(), 3u) << "the newest range stays, although the range is above the limit";
  }
  EXPECT_EQ(file.dropped, (DroppedRanges{{0, 60}, {60, 40}, {100, 70}, {170, 200}}));
}

}  // namespace
}  // namespace cairn::data_file
