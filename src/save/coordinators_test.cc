// Ranks that disagree about the coordinator of a save, or name one that is no rank: all ranks fail at once.
#include <cairn/async_checkpointer.h>
#include <cairn/cairn.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "save/testing/named_calls.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

using Coordinators = std::array<std::size_t, 3>;  // by rank

void expect_disagreement(const Error& error) {
  const std::string text = error.what();
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << text;
  EXPECT_NE(text.find("coordinator"), std::string::npos) << text;
}

class DifferentCoordinators : public testing::TestWithParam<Coordinators> {
 protected:
  template <typename Save>
  void save_by_each_rank(const Save& save) {
    as_three_ranks([&](std::size_t rank, Collectives& collectives) {
      std::vector<float> own(5);
      StateDict state;
      ASSERT_TRUE(
          state.add_tensor(Path{std::to_string(rank)}, TensorView::contiguous(own.data(), DType::kFloat32, {5})));
      SaveOptions options;
      options.collectives = &collectives;
      options.coordinator_rank = GetParam()[rank];
      save(state, options);
    });
  }
  void expect_nothing_left() const {
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(directory(), none)) ADD_FAILURE() << entry.path();
  }
  std::filesystem::path directory() const { return scratch_.path() / "checkpoint"; }
  storage::ScratchDirectory scratch_;
};

TEST_P(DifferentCoordinators, FailABlockingSave) {
  save_by_each_rank([&](const StateDict& state, const SaveOptions& options) {
    const auto saved = save(directory(), state, options);
    ASSERT_FALSE(saved);
    expect_disagreement(saved.error());
  });
  expect_nothing_left();
}

TEST_P(DifferentCoordinators, FailAnAsynchronousSave) {
  save_by_each_rank([&](const StateDict& state, const SaveOptions& options) {
    AsyncCheckpointer checkpointer;
    AsyncSaveOptions together;
    together.save = options;
    const auto saved = checkpointer.save(directory(), state, together);
    ASSERT_FALSE(saved);
    expect_disagreement(saved.error());
  });
  expect_nothing_left();
}

// Two ranks claim the directory, or no rank does; the last coordinator is no rank.
INSTANTIATE_TEST_SUITE_P(Ranks, DifferentCoordinators,
                         testing::Values(Coordinators{0, 1, 0}, Coordinators{1, 0, 0}, Coordinators{2, 2, 1},
                                         Coordinators{3, 3, 3}));

}  // namespace
}  // namespace cairn
