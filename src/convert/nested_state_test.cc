#include "convert/nested_state.h"

#include <gtest/gtest.h>

namespace cairn::checkpointer {
namespace {

std::string text_of(const std::vector<Path>& paths) {
  NestedState state;
  int number = 0;
  for (const Path& path : paths) {
    if (auto added = state.add(path, Value(number++)); !added) return std::string(name_of(added.error().code()));
  }
  Result<Value> value = std::move(state).take();
  return value ? to_string(*value, 1000) : std::string(name_of(value.error().code()));
}

TEST(NestedState, IntegersInPathsArePositions) {
  EXPECT_EQ(text_of({}), "{}");
  EXPECT_EQ(text_of({{"a.b"}, {"c", "d"}, {"c", "e"}}), "{'a.b': 0, 'c': {'d': 1, 'e': 2}}");
  EXPECT_EQ(text_of({{"l", std::int64_t{1}}, {"l", std::int64_t{0}, "x"}}), "{'l': [{'x': 1}, 0]}");
  EXPECT_EQ(text_of({{"l", std::int64_t{2}}}), "{'l': [None, None, 0]}");
}

TEST(NestedState, ContradictionsAreCorrupt) {
  EXPECT_EQ(text_of({{"a"}, {"a", "b"}}), "kCorrupt");
  EXPECT_EQ(text_of({{"a", "b"}, {"a"}}), "kCorrupt");
  EXPECT_EQ(text_of({{"a"}, {"a"}}), "kCorrupt");
  EXPECT_EQ(text_of({{"a", "b"}, {"a", std::int64_t{0}}}), "kCorrupt");
  EXPECT_EQ(text_of({{"a", std::int64_t{-1}}}), "kCorrupt");
}

TEST(NestedState, HostilePathsTakeNoMemory) {
  EXPECT_EQ(text_of({{"l", std::int64_t{1} << 60}}), "kUnsafe");
  EXPECT_EQ(text_of({Path(100'000, PathElement("a"))}), "kUnsupported");
}

}  // namespace
}  // namespace cairn::checkpointer
