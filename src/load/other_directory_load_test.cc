// Loads by ranks that name different directories.
#include <cairn/cairn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "save/testing/named_calls.h"
#include "save/testing/sample_state.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

TEST(OtherDirectoryLoad, NamesTheDirectoriesOfTheRanks) {
  const storage::ScratchDirectory scratch;
  for (const std::string name : {"step-1", "step-2"}) {
    SaveOptions options;
    options.durability = Durability::kBuffered;
    ASSERT_TRUE(save(scratch.path() / name, SampleState(1).dict(), options));
  }
  as_three_ranks([&](std::size_t rank, Collectives& collectives) {
    SampleState state(0);
    const std::filesystem::path directory = scratch.path() / (rank == 1 ? "step-2" : "step-1");
    const auto loaded = load(directory, state.dict(), {.collectives = &collectives});
    ASSERT_FALSE(loaded);
    EXPECT_EQ(loaded.error().code(), ErrorCode::kInvalidArgument) << loaded.error().what();
    EXPECT_EQ(loaded.error().rank(), 1);
    const std::string text = loaded.error().what();
    EXPECT_NE(text.find("different directories"), std::string::npos) << text;
    EXPECT_NE(text.find((scratch.path() / "step-1").string()), std::string::npos) << text;
    EXPECT_NE(text.find((scratch.path() / "step-2").string()), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace cairn
