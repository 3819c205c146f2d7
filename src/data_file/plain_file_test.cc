#include "data_file/plain_file.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace cairn::data_file {
namespace {

TEST(PlainFile, PutsBytesBehindEachOther) {
  const PlainFile file{PlainFile::Form::kBytes, {3, 0, 5}};
  const auto image = file.image(std::nullopt).value();
  EXPECT_EQ(image->file_bytes(), 8u);
  EXPECT_EQ(image->payload_begin(2), 3u);
}

TEST(PlainFile, HasOneLayoutStagedOrNot) {
  const PlainFile file{PlainFile::Form::kTorchSave, {1000, 0, 70'000, 12}};
  const auto absent = file.image(std::nullopt).value();
  const std::vector<std::byte> memory(absent->file_bytes());
  const auto staged = file.image(memory).value();
  EXPECT_EQ(staged->file_bytes(), absent->file_bytes());
  ASSERT_EQ(staged->payload_count(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(staged->payload_begin(i), absent->payload_begin(i));
  EXPECT_TRUE(absent->is_absent(0));
  EXPECT_FALSE(staged->is_absent(0));
}

TEST(PlainFile, RefusesTooLittleMemory) {
  for (const auto form : {PlainFile::Form::kBytes, PlainFile::Form::kTorchSave}) {
    const PlainFile file{form, {1000, 10}};
    const std::uint64_t bytes = file.image(std::nullopt).value()->file_bytes();
    const std::vector<std::byte> memory(bytes);
    EXPECT_TRUE(file.image(memory));
    EXPECT_FALSE(file.image(std::span(memory).first(bytes - 1)));
    EXPECT_FALSE(file.image(std::span(memory).first(500)));
  }
}

TEST(PlainFile, RefusesImpossibleSizes) {
  const std::uint64_t half = std::uint64_t{1} << 62;
  for (const auto form : {PlainFile::Form::kBytes, PlainFile::Form::kTorchSave}) {
    EXPECT_FALSE((PlainFile{form, {half + 1, 1}}.image(std::nullopt)));
    EXPECT_FALSE((PlainFile{form, {half, half}}.image(std::nullopt)));
    EXPECT_FALSE((PlainFile{form, {UINT64_MAX}}.image(std::nullopt)));
  }
  EXPECT_FALSE((PlainFile{PlainFile::Form::kTorchSave, {}}.image(std::nullopt)));
}

}  // namespace
}  // namespace cairn::data_file
