// The commit of a save, step by step, on a model disk.
#include "commit/save_transaction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <utility>

#include "commit/leftovers.h"
#include "commit/pin.h"
#include "commit/testing/dead_lease.h"
#include "commit/testing/one_save.h"
#include "core/checksum.h"
#include "storage/posix/posix_storage.h"
#include "storage/testing/model_storage.h"
#include "storage/testing/scratch_directory.h"
#include "storage/testing/view_storage.h"

namespace cairn::commit {
namespace {

using storage::ModelStorage;

TEST(Commit, FirstSaveHasTheNamesOfTorch) {
  ModelStorage disk;
  ASSERT_TRUE(disk.create_whole("common.pt", "others", Durability::kDurable));
  commit_one(disk, save_number(1));
  EXPECT_EQ(names_in(disk), (std::vector<std::string>{".metadata", "__0_0.distcp", "common.pt"}));
}

TEST(Commit, ALaterSaveNeverReusesAName) {
  ModelStorage disk;
  commit_one(disk, save_number(1));
  commit_one(disk, save_number(2));
  EXPECT_FALSE(holds(disk, "__0_0.distcp"));
  EXPECT_EQ(names_in(disk).size(), 2u);
  EXPECT_EQ(read_metadata_in_place(disk).value().record->save_number, 2u);
}

TEST(Commit, ConcurrentSavesSeeEachOther) {
  ModelStorage disk;
  OneSave first(disk, save_number(1));
  OneSave second(disk, save_number(1, kOtherJob));
  EXPECT_EQ(first.name(), "__0_0.distcp");
  EXPECT_NE(second.name(), "__0_0.distcp");
}

TEST(Commit, LoserOfTwoJobsWithdraws) {
  ModelStorage disk;
  OneSave loser(disk, save_number(1));
  commit_one(disk, save_number(1, kOtherJob));
  ASSERT_TRUE(loser.publish());
  const auto committed = loser.commit();
  ASSERT_FALSE(committed);
  EXPECT_EQ(committed.error().code(), ErrorCode::kSuperseded);
  loser.withdraw();
  EXPECT_EQ(names_in(disk).size(), 2u);
  EXPECT_EQ(read_metadata_in_place(disk).value().record->job_id, kOtherJob);
}

TEST(Commit, IsRefusedBesideAModel) {
  ModelStorage disk;
  ASSERT_TRUE(disk.create_whole("model.safetensors", "a model", Durability::kDurable));
  const auto claimed = claim_checkpoint(disk, save_number(1), {.beside_a_model = false});
  ASSERT_FALSE(claimed);
  EXPECT_EQ(claimed.error().file(), "model.safetensors");
  const std::string text = claimed.error().what();
  EXPECT_NE(text.find("holds a safetensors model"), std::string::npos) << text;
  EXPECT_NE(text.find("choose a new directory"), std::string::npos) << text;
}

TEST(Commit, TheLoserNamesBothSaves) {
  ModelStorage disk;
  const SaveIdentity winner = save_number(1, kOtherJob);
  OneSave first(disk, save_number(1));
  commit_one(disk, winner);
  OneSave second(disk, save_number(2));
  ASSERT_TRUE(first.publish());
  const auto committed = first.commit();
  ASSERT_FALSE(committed);
  EXPECT_NE(std::string(committed.error().what()).find("another save committed"), std::string::npos);
  EXPECT_EQ(committed.error().expected(), "none");
  EXPECT_EQ(committed.error().actual(), "save " + to_hex(winner.save_id));
  ASSERT_TRUE(disk.remove(kMetadataName));
  ASSERT_TRUE(disk.create_whole(kMetadataName, "of stock torch", Durability::kDurable));
  ASSERT_TRUE(second.publish());
  const auto after = second.commit();
  ASSERT_FALSE(after);
  EXPECT_EQ(after.error().expected(), "save " + to_hex(winner.save_id));
  EXPECT_EQ(after.error().actual(), "a stock checkpoint");
}

// The removal looked for saves under way just before the claim.
TEST(Commit, GoesOnAfterTheOldIsRemoved) {
  ModelStorage disk;
  commit_one(disk, save_number(1));
  OneSave second(disk, save_number(2));
  ASSERT_TRUE(disk.publish(".metadata", ".cairn-removed"));
  ASSERT_TRUE(second.publish());
  const auto committed = second.commit();
  ASSERT_TRUE(committed) << committed.error().what();
  EXPECT_EQ(read_metadata_in_place(disk).value().record->save_id, save_number(2).save_id);
  EXPECT_TRUE(holds(disk, second.name()));
}

TEST(Commit, KeepsTheOrderOfAJob) {
  ModelStorage disk;
  OneSave second(disk, save_number(2));
  OneSave first(disk, save_number(1));
  OneSave third(disk, save_number(3));
  ASSERT_TRUE(second.publish());
  ASSERT_TRUE(second.commit());
  ASSERT_TRUE(first.publish());
  EXPECT_EQ(first.commit().error().code(), ErrorCode::kSuperseded);
  first.withdraw();
  ASSERT_TRUE(third.publish());
  ASSERT_TRUE(third.commit());
  EXPECT_EQ(names_in(disk), (std::vector<std::string>{".metadata", third.name()}));
}

TEST(Commit, RefusesAConcurrentOverwrite) {
  ModelStorage disk;
  auto first = claim_checkpoint(disk, save_number(1), {.overwrite = false}).value();
  auto second = claim_checkpoint(disk, save_number(2), {.overwrite = false}).value();
  ASSERT_TRUE(first->commit("pickle", {}, Durability::kDurable));
  EXPECT_EQ(second->commit("pickle", {}, Durability::kDurable).error().code(), ErrorCode::kInvalidArgument);
}

// A pin may come before the claim, and between claim and commit.
TEST(Commit, APinRefusesAnOverwrite) {
  ModelStorage disk;
  commit_one(disk, save_number(1));
  OneSave late(disk, save_number(2), {.overwrite_pinned = false});
  ASSERT_TRUE(pin(disk, "of the paper"));
  const auto claimed = claim_checkpoint(disk, save_number(3), {.overwrite_pinned = false});
  ASSERT_FALSE(claimed);
  EXPECT_EQ(claimed.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(claimed.error().file(), ".cairn-pinned");
  ASSERT_TRUE(late.publish());
  EXPECT_EQ(late.commit().error().code(), ErrorCode::kUnavailable);
  late.withdraw();
  EXPECT_EQ(read_metadata_in_place(disk).value().record->save_id, save_number(1).save_id);
  commit_one(disk, save_number(4));
  EXPECT_EQ(read_metadata_in_place(disk).value().record->save_id, save_number(4).save_id) << "by default";
}

TEST(Commit, AWithdrawnSaveLeavesNothing) {
  ModelStorage disk;
  commit_one(disk, save_number(1));
  const auto before = names_in(disk);
  OneSave save(disk, save_number(2));
  ASSERT_TRUE(save.publish());
  save.withdraw();
  EXPECT_EQ(names_in(disk), before);
}

// A storage whose publish() is given by the test.
class OddPublishing : public storage::ViewStorage {
 public:
  using Publish = std::function<Result<void>(storage::Storage&, std::string_view from, std::string_view to)>;
  OddPublishing(storage::Storage& storage, Publish publish)
      : ViewStorage(storage), storage_(storage), publish_(std::move(publish)) {}
  Result<void> publish(std::string_view from, std::string_view to) override { return publish_(storage_, from, to); }

 private:
  storage::Storage& storage_;
  Publish publish_;
};

TEST(Commit, FileOfAFailedCallIsWithdrawn) {
  ModelStorage disk;
  OddPublishing odd(disk, [](storage::Storage& storage, std::string_view from, std::string_view to) -> Result<void> {
    CAIRN_TRY(storage.publish(from, to));
    return Error::from_errno(ETIMEDOUT, "publishing, whose answer is lost");
  });
  OneSave save(odd, save_number(1));
  EXPECT_EQ(save.name(), "__0_0.distcp");
  EXPECT_FALSE(save.publish());
  EXPECT_TRUE(holds(disk, save.name()));
  save.withdraw();
  EXPECT_EQ(names_in(disk), std::vector<std::string>());
}

TEST(Commit, LeavesAFileOfAnotherSave) {
  for (const std::string& other : {data_file_of({8, 8}), std::string("of stock torch")}) {
    ModelStorage disk;
    OddPublishing odd(disk, [&](storage::Storage& storage, std::string_view from, std::string_view to) {
      EXPECT_TRUE(storage.create_whole(to, other, Durability::kDurable));  // after the claim has listed the directory
      return storage.publish(from, to);
    });
    OneSave save(odd, save_number(1));
    const auto published = save.publish();
    ASSERT_FALSE(published);
    EXPECT_EQ(published.error().error_number(), EEXIST);
    save.withdraw();
    EXPECT_EQ(names_in(disk), std::vector<std::string>{"__0_0.distcp"});
    EXPECT_EQ(storage::read_small(disk, "__0_0.distcp", 1000).value(), other);
  }
}

TEST(MetadataInPlace, IsComparedByTheRecord) {
  ModelStorage disk;
  commit_one(disk, save_number(1));
  const auto first = read_metadata_in_place(disk).value();
  ASSERT_TRUE(first.record);
  EXPECT_TRUE(first.same_as(read_metadata_in_place(disk).value()));
  commit_one(disk, save_number(2));
  EXPECT_FALSE(first.same_as(read_metadata_in_place(disk).value()));
}

TEST(MetadataInPlace, IsComparedByBytesIfRecordless) {
  ModelStorage disk;
  commit_one(disk, save_number(1));
  const auto whole = read_metadata_in_place(disk).value();
  std::string bytes = storage::read_small(disk, kMetadataName, 1000).value();
  std::vector<MetadataInPlace> others;
  for (const std::size_t damaged : {bytes.size() - 1, bytes.size() - 20, bytes.size() - 60}) {  // magic, footer, body
    bytes[damaged] ^= 1;
    ASSERT_TRUE(disk.remove(kMetadataName));
    ASSERT_TRUE(disk.create_whole(kMetadataName, bytes, Durability::kDurable));
    others.push_back(read_metadata_in_place(disk).value());
    EXPECT_FALSE(others.back().record);
    EXPECT_EQ(others.back().checksum, crc32(std::as_bytes(std::span(bytes))));
    EXPECT_TRUE(others.back().same_as(read_metadata_in_place(disk).value()));
    bytes[damaged] ^= 1;
  }
  for (std::size_t i = 0; i < others.size(); ++i) {
    EXPECT_FALSE(others[i].same_as(whole));
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(others[i].same_as(others[j]));
  }
}

// Makes a folder as a killed save leaves it.
void leave_dead_save(ModelStorage& disk, const SaveIdentity& identity, const std::string& replaced) {
  const std::string folder = folder_of(identity.save_id);
  ASSERT_TRUE(disk.make_folder(folder));
  leave_dead_lease(disk, folder);
  ASSERT_TRUE(disk.create_whole(folder + "/half.distcp", "half", Durability::kBuffered));
  ASSERT_TRUE(disk.create_whole(folder + "/replaced", replaced, Durability::kBuffered));
  ASSERT_TRUE(
      disk.create_whole("__0_" + to_decimal(identity.save_id) + "000000.distcp", "published", Durability::kBuffered));
}

TEST(Leftovers, DeadSavesGoWithTheNextCommit) {
  ModelStorage disk;
  commit_one(disk, save_number(1));
  ASSERT_TRUE(disk.create_whole("__0_5.distcp", "of a checkpoint that the dead save replaced", Durability::kBuffered));
  ASSERT_TRUE(disk.create_whole("common.pt", "others", Durability::kBuffered));
  leave_dead_save(disk, save_number(9, kOtherJob), "__0_5.distcp\ncommon.pt\n../outside.distcp\n");
  commit_one(disk, save_number(2));
  const auto names = names_in(disk);
  ASSERT_EQ(names.size(), 3u) << testing::PrintToString(names);
  EXPECT_TRUE(holds(disk, "common.pt"));
}

// A storage in which a rank leaves a mark in a folder that was found empty, right before the folder is removed.
class LateMark : public storage::ViewStorage {
 public:
  explicit LateMark(ModelStorage& disk) : ViewStorage(disk), disk_(disk) {}
  Result<void> remove_folder(std::string_view name) override {
    if (!std::exchange(left_, true)) {
      EXPECT_TRUE(disk_.create_whole(std::string(name) + "/failed-1", "late", Durability::kBuffered));
    }
    return disk_.remove_folder(name);
  }

 private:
  ModelStorage& disk_;
  bool left_ = false;
};

TEST(Leftovers, GoWithAMarkThatComesLate) {
  ModelStorage disk;
  leave_dead_save(disk, save_number(9), "");
  LateMark storage(disk);
  ASSERT_TRUE(clean_up_after(storage, save_number(9).save_id));
  EXPECT_TRUE(names_in(disk).empty()) << testing::PrintToString(names_in(disk));
}

TEST(Leftovers, StayWhileTheSaveIsLiving) {
  ModelStorage disk;
  OneSave living(disk, save_number(1, kOtherJob));
  ASSERT_TRUE(living.publish());
  commit_one(disk, save_number(2));
  EXPECT_TRUE(holds(disk, living.name()));
  EXPECT_TRUE(holds(disk, folder_of(save_number(1, kOtherJob).save_id)));
}

TEST(Commit, IgnoresADeadSavesLockFile) {
  ModelStorage disk;
  ASSERT_TRUE(disk.create_whole(storage::kLockName, "", Durability::kBuffered));
  commit_one(disk, save_number(1));
  EXPECT_EQ(names_in(disk), (std::vector<std::string>{".metadata", "__0_0.distcp"}));
}

// The first `stale` opened files are stale, as after a removal by another client.
class StaleFiles : public storage::ViewStorage {
 public:
  StaleFiles(storage::Storage& storage, int stale) : ViewStorage(storage), stale_(stale) {}
  Result<std::unique_ptr<storage::ReadableFile>> open(std::string_view name, bool follow_links) const override {
    CAIRN_TRY_ASSIGN(auto file, ViewStorage::open(name, follow_links));
    if (stale_-- <= 0) return file;
    return std::unique_ptr<storage::ReadableFile>(std::make_unique<Stale>(file->size()));
  }

 private:
  class Stale final : public storage::ReadableFile {
   public:
    explicit Stale(std::uint64_t size) : size_(size) {}
    std::uint64_t size() const override { return size_; }
    Result<void> read_at(std::uint64_t, std::span<std::byte>) const override {
      return Error::from_errno(ESTALE, "reading");
    }
    std::optional<DirectAlignment> direct_alignment() const override { return std::nullopt; }
    Result<void> read_direct_at(std::uint64_t offset, std::span<std::byte> target) const override {
      return read_at(offset, target);
    }
    bool is_cached(std::uint64_t, std::uint64_t) const override { return false; }

   private:
    std::uint64_t size_;
  };

  mutable int stale_;
};

TEST(MetadataInPlace, IsReadAgainIfStale) {
  ModelStorage disk;
  commit_one(disk, save_number(1));
  const auto read = read_metadata_in_place(StaleFiles(disk, 3));
  ASSERT_TRUE(read) << read.error().what();
  ASSERT_TRUE(read->record);
  EXPECT_EQ(read->record->save_number, 1u);
  EXPECT_EQ(read_metadata_in_place(StaleFiles(disk, 1000)).error().code(), ErrorCode::kUnavailable);
}

// The file `name` appears to be large, and full of zeros.
class LargeFile : public storage::ViewStorage {
 public:
  LargeFile(storage::Storage& storage, std::string name, std::uint64_t size)
      : ViewStorage(storage), name_(std::move(name)), size_(size) {}
  Result<std::unique_ptr<storage::ReadableFile>> open(std::string_view name, bool follow_links) const override {
    if (name != name_) return ViewStorage::open(name, follow_links);
    return std::unique_ptr<storage::ReadableFile>(std::make_unique<Zeros>(*this));
  }
  std::uint64_t bytes_read() const { return bytes_read_; }
  std::uint64_t longest_read() const { return longest_read_; }

 private:
  class Zeros final : public storage::ReadableFile {
   public:
    explicit Zeros(const LargeFile& view) : view_(view) {}
    std::uint64_t size() const override { return view_.size_; }
    Result<void> read_at(std::uint64_t, std::span<std::byte> target) const override {
      view_.bytes_read_ += target.size();
      view_.longest_read_ = std::max<std::uint64_t>(view_.longest_read_, target.size());
      std::fill(target.begin(), target.end(), std::byte{0});
      return {};
    }
    std::optional<DirectAlignment> direct_alignment() const override { return std::nullopt; }
    Result<void> read_direct_at(std::uint64_t offset, std::span<std::byte> target) const override {
      return read_at(offset, target);
    }
    bool is_cached(std::uint64_t, std::uint64_t) const override { return false; }

   private:
    const LargeFile& view_;
  };

  const std::string name_;
  const std::uint64_t size_;
  mutable std::uint64_t bytes_read_ = 0;
  mutable std::uint64_t longest_read_ = 0;
};

constexpr std::uint64_t kLargePiece = 4 << 20;  // the most bytes of a file that may be in memory at a time

TEST(MetadataInPlace, IsReadInPiecesIfRecordless) {
  ModelStorage disk;
  constexpr std::uint64_t kSize = (std::uint64_t{200} << 20) + 1;
  const LargeFile view(disk, std::string(kMetadataName), kSize);
  const auto read = read_metadata_in_place(view);
  ASSERT_TRUE(read) << read.error().what();
  EXPECT_FALSE(read->record);
  EXPECT_EQ(read->size, kSize);
  EXPECT_EQ(read->checksum, crc32(std::vector<std::byte>(kSize)));
  EXPECT_GE(view.bytes_read(), kSize);
  EXPECT_LE(view.longest_read(), kLargePiece);
}

TEST(MetadataInPlace, IsNotReadIfFarTooLarge) {
  ModelStorage disk;
  constexpr std::uint64_t kSize = (std::uint64_t{1} << 34) + 1;
  const LargeFile view(disk, std::string(kMetadataName), kSize);
  const auto read = read_metadata_in_place(view);
  ASSERT_TRUE(read) << read.error().what();
  EXPECT_TRUE(read->present);
  EXPECT_EQ(read->size, kSize);
  EXPECT_EQ(view.bytes_read(), 0u);
}

// The large metadata is either in place and replaced by the save, or the metadata of a second rank saving alone.
TEST(Leftovers, StayBesideLargeMetadata) {
  for (const std::string& name : {std::string(kMetadataName), metadata_name(9)}) {
    ModelStorage disk;
    ASSERT_TRUE(disk.create_whole("__0_0.distcp", "old", Durability::kDurable));
    ASSERT_TRUE(disk.create_whole(name, "old", Durability::kDurable));
    LargeFile view(disk, name, kDecodedMetadataBytesMax + 1);
    OneSave save(view, save_number(1));
    ASSERT_TRUE(save.publish());
    const auto committed = save.commit();
    EXPECT_LE(view.longest_read(), kLargePiece);
    EXPECT_TRUE(holds(disk, "__0_0.distcp"));
    if (name == kMetadataName) continue;  // after the commit too, the view shows the old file
    ASSERT_TRUE(committed) << committed.error().what();
    ASSERT_EQ(committed->warnings.size(), 1U);
    EXPECT_NE(committed->warnings[0].find("'__9.metadata'"), std::string::npos);
  }
}

TEST(Commit, PublishesNoReplacedFolder) {
  for (const bool published : {false, true}) {
    ModelStorage disk;
    commit_one(disk, save_number(1));
    OneSave save(disk, save_number(2));
    if (published) ASSERT_TRUE(save.publish());
    disk.replace_folder(folder_of(save_number(2).save_id));
    const ErrorCode code = published ? save.commit().error().code() : save.publish().error().code();
    EXPECT_EQ(code, ErrorCode::kUnsafe);
    save.withdraw();
    EXPECT_EQ(read_metadata_in_place(disk).value().record->save_number, 1u);
    EXPECT_FALSE(holds(disk, save.name()));
  }
}

TEST(Leftovers, StayInAnotherUsersFolder) {
  ModelStorage disk;
  ASSERT_TRUE(disk.create_whole("__0_5.distcp", "not named by any metadata", Durability::kBuffered));
  leave_dead_save(disk, save_number(9, kOtherJob), "__0_5.distcp\n");
  const std::string folder = folder_of(save_number(9, kOtherJob).save_id);
  disk.give_away(folder);
  commit_one(disk, save_number(1));
  EXPECT_TRUE(holds(disk, "__0_5.distcp"));
  EXPECT_TRUE(holds(disk, folder));
}

// A late rank: publishes a file long after the coordinator has withdrawn the save, and never reads the decision.
class LateRank {
 public:
  explicit LateRank(ModelStorage& disk) : disk_(disk) {
    auto claimed = claim_checkpoint(disk, identity_);
    const SaveTicket ticket = claimed.value()->ticket();
    claimed->reset();
    name_ = data_file_name(ticket, 1, 0);
    files_.emplace(disk, identity_);
    EXPECT_TRUE(
        disk.create_whole(files_->private_name(name_).value(), data_file_of(identity_.save_id), Durability::kDurable));
    EXPECT_TRUE(files_->publish({name_}, Durability::kDurable));
    files_->hand_over();
  }

  RankFiles& files() { return *files_; }
  bool has_left_a_file() const { return holds(disk_, name_); }
  bool has_left_a_folder() const { return holds(disk_, folder()); }
  void die() {
    files_.reset();
    leave_dead_lease(disk_, folder());
  }

 private:
  std::string folder() const { return folder_of(identity_.save_id); }

  ModelStorage& disk_;
  SaveIdentity identity_ = save_number(9, kOtherJob);
  std::string name_;
  std::optional<RankFiles> files_;
};

TEST(Leftovers, GoWithTheDeathOfALateRank) {
  // The first save's file has DCP's plain name, which does not include the save id.
  for (const bool first : {true, false}) {
    ModelStorage disk;
    if (!first) commit_one(disk, save_number(1));
    LateRank late(disk);
    commit_one(disk, save_number(2));
    EXPECT_TRUE(late.has_left_a_file());
    late.die();
    EXPECT_TRUE(late.has_left_a_folder());
    commit_one(disk, save_number(3));
    EXPECT_EQ(names_in(disk).size(), 2u) << testing::PrintToString(names_in(disk));
  }
}

TEST(Leftovers, OwnDirectoryGoesWithDecision) {
  ModelStorage disk;
  LateRank committed(disk);
  committed.files().remove_own_folder();
  EXPECT_TRUE(committed.has_left_a_file());
  EXPECT_FALSE(committed.has_left_a_folder());
  ModelStorage other_disk;
  LateRank failed(other_disk);
  failed.files().withdraw();
  EXPECT_TRUE(names_in(other_disk).empty()) << testing::PrintToString(names_in(other_disk));
}

TEST(Lease, FolderNamesAreRecognised) {
  const SaveId id{0x0123456789abcdef, 42};
  EXPECT_EQ(save_id_of_folder(folder_of(id)), id);
  EXPECT_FALSE(save_id_of_folder(".cairn-"));
  EXPECT_FALSE(save_id_of_folder(".cairn-0123456789ABCDEF000000000000002a"));
  EXPECT_FALSE(save_id_of_folder("cairn-0123456789abcdef000000000000002a"));
}

}  // namespace
}  // namespace cairn::commit
