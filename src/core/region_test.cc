#include "core/region.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace cairn {
namespace {

// Every index of a shape, last dimension fastest.
std::vector<Extents> all_indices(const Extents& sizes) {
  std::vector<Extents> indices;
  const std::int64_t count = element_count(sizes).value();
  for (std::int64_t i = 0; i < count; ++i) {
    Extents index(sizes.size(), 0);
    std::int64_t rest = i;
    for (std::size_t d = sizes.size(); d-- > 0; rest /= sizes[d]) index[d] = rest % sizes[d];
    indices.push_back(index);
  }
  return indices;
}

std::int64_t dot(const Extents& a, const Extents& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), std::int64_t{0});
}

// Strides of a tensor with shuffled dimensions; no two elements have the same offset.
Extents shuffled_strides(const Extents& sizes, std::mt19937& random) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), random);
  Extents strides(sizes.size(), 0);
  std::int64_t next = 1 + static_cast<std::int64_t>(random() % 2);
  for (const std::size_t d : order) {
    strides[d] = next;
    next *= sizes[d] + static_cast<std::int64_t>(random() % 2);
  }
  return strides;
}

TEST(Region, GathersAndScattersAnyStrides) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE(testing::Message() << "round=" << round);
    Extents sizes(random() % 5, 0);
    for (std::size_t d = 0; d < sizes.size(); ++d) sizes[d] = 1 + static_cast<std::int64_t>(random() % 4);
    const Extents file_strides = shuffled_strides(sizes, random);
    const Extents memory_strides = shuffled_strides(sizes, random);
    const Region region(sizes, file_strides, memory_strides);
    const std::vector<Extents> indices = all_indices(sizes);

    std::vector<std::int32_t> file(static_cast<std::size_t>(region.file_extent()), -1);
    std::vector<std::int32_t> memory(1024, -2);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      file[static_cast<std::size_t>(dot(indices[i], file_strides))] = static_cast<std::int32_t>(i);
    }
    // Scatters in three windows with arbitrary cuts: elements outside a window must not change.
    const auto end = static_cast<std::int64_t>(file.size());
    const std::int64_t cuts[] = {0, end / 3, end / 3 + (end - end / 3) / 2, end};
    for (std::size_t w = 0; w < 3; ++w) {
      const auto window =
          std::span(file).subspan(static_cast<std::size_t>(cuts[w]), static_cast<std::size_t>(cuts[w + 1] - cuts[w]));
      scatter(region, 4, std::as_bytes(window), cuts[w], reinterpret_cast<std::byte*>(memory.data()));
    }
    std::int64_t written = 0;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      EXPECT_EQ(memory[static_cast<std::size_t>(dot(indices[i], memory_strides))], static_cast<std::int32_t>(i));
    }
    for (const std::int32_t value : memory) written += value != -2;
    EXPECT_EQ(written, static_cast<std::int64_t>(indices.size()));

    std::vector<std::int32_t> back(file.size(), -1);
    gather(region, 4, reinterpret_cast<const std::byte*>(memory.data()), 0, std::as_writable_bytes(std::span(back)));
    EXPECT_EQ(back, file);
  }
}

TEST(Region, EqualLayoutsAreOneCopy) {
  const Extents sizes{3, 4, 5};
  EXPECT_TRUE(Region(sizes, row_major_strides(sizes), row_major_strides(sizes)).is_linear());
  EXPECT_FALSE(Region(sizes, row_major_strides(sizes), Extents{40, 5, 1}).is_linear());
}

TEST(Region, NoElementsMakeNoRuns) {
  const Extents sizes{3, 0, 5};
  const Region region(sizes, row_major_strides(sizes), row_major_strides(sizes));
  EXPECT_EQ(region.element_count(), 0);
}

TEST(Region, NoDimensionsMakeOneElement) {
  const Region region({}, {}, {});
  EXPECT_EQ(region.element_count(), 1);
  EXPECT_TRUE(region.is_linear());
}

}  // namespace
}  // namespace cairn
