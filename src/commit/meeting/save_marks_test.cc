#include "commit/meeting/save_marks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>

#include "commit/testing/one_save.h"
#include "storage/testing/full_storage.h"
#include "storage/testing/model_storage.h"

namespace cairn::commit {
namespace {

using storage::ModelStorage;

// The coordinator waits for a look of a rank whose lease is the mark.
TEST(SaveMarks, SeparateFailuresWithoutAReason) {
  ModelStorage disk;
  const SaveIdentity save = save_number(4);
  SaveMarks marks(disk, save.save_id);
  ASSERT_TRUE(disk.make_folder(marks.folder()));
  ASSERT_TRUE(Lease::take_as_rank(disk, save, 1));  // the file stays
  ASSERT_TRUE(Lease::take_as_rank(disk, save, 2));
  const Error reason(ErrorCode::kNoSpace, "the disk is full");
  storage::FullStorage full(ModelStorage::view_of(disk));
  ASSERT_TRUE(SaveMarks(full, save.save_id).write_failure(1, reason));
  ASSERT_TRUE(marks.write_failure(2, reason));
  const SaveMarks::Seen seen = marks.look().value();
  EXPECT_EQ(seen.leases, std::set<std::uint32_t>{2});
  EXPECT_EQ(seen.without_reason, std::set<std::uint32_t>{1});
  ASSERT_EQ(seen.failures.size(), 2u);
  EXPECT_NE(seen.failures.at(1).message(), reason.message());
  EXPECT_EQ(seen.failures.at(2).message(), reason.message());
}

}  // namespace
}  // namespace cairn::commit
