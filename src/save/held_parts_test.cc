#include "save/held_parts.h"

#include <cairn/async_checkpointer.h>
#include <cairn/save.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "storage/testing/scratch_directory.h"

namespace cairn::checkpointer {
namespace {

// Rows of a tensor of 8 x 2 elements.
StateDict state_of_rows(std::vector<float>& elements, const std::vector<std::pair<std::int64_t, std::int64_t>>& rows) {
  StateDict state;
  for (const auto& [first, count] : rows) {
    const TensorView local = TensorView::contiguous(elements.data() + first * 2, DType::kFloat32, {count, 2});
    state.add_chunk("w", local, {8, 2}, {first, 0}).value();
  }
  return state;
}

class HeldParts : public testing::Test {
 protected:
  std::vector<float> elements_ = std::vector<float>(16, 1.0F);
  storage::ScratchDirectory directory_;
};

TEST_F(HeldParts, CoveringChunksAreNoPart) {
  EXPECT_EQ(warning_of_parts(state_of_rows(elements_, {{0, 8}})), std::nullopt);
  EXPECT_EQ(warning_of_parts(state_of_rows(elements_, {{4, 4}, {0, 4}})), std::nullopt);
  EXPECT_EQ(warning_of_parts(StateDict()), std::nullopt);
}

TEST_F(HeldParts, AMissingChunkIsNamed) {
  const auto warning = warning_of_parts(state_of_rows(elements_, {{0, 3}, {4, 4}}));
  ASSERT_TRUE(warning);
  EXPECT_NE(warning->find("'w'"), std::string::npos) << *warning;
}

TEST_F(HeldParts, WarnWithoutCollectives) {
  const StateDict half = state_of_rows(elements_, {{0, 4}});
  const SaveReport report = save(directory_.path() / "save", half).value();
  EXPECT_EQ(report.warnings, std::vector{*warning_of_parts(half)});

  AsyncCheckpointer checkpointer;
  const AsyncSave begun = checkpointer.save(directory_.path() / "async", half).value();
  EXPECT_EQ(begun.write.get().value().warnings, std::vector{*warning_of_parts(half)});
}

TEST_F(HeldParts, ADeclaredSaveOfOneRankIsSilent) {
  const StateDict half = state_of_rows(elements_, {{0, 4}});
  SaveOptions options;
  options.alone_as_rank = 1;
  EXPECT_TRUE(save(directory_.path() / "save", half, options).value().warnings.empty());

  AsyncCheckpointer checkpointer;
  AsyncSaveOptions async_options;
  async_options.save = options;
  const AsyncSave begun = checkpointer.save(directory_.path() / "async", half, async_options).value();
  EXPECT_TRUE(begun.write.get().value().warnings.empty());
}

}  // namespace
}  // namespace cairn::checkpointer
