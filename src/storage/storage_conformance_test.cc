// The promises of Storage, tested on every kind of storage, and the promises that only a real directory can keep.
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "os/fd.h"
#include "os/page_buffer.h"
#include "storage/bucket/bucket_storage.h"
#include "storage/posix/posix_storage.h"
#include "storage/testing/memory_object_store.h"
#include "storage/testing/model_storage.h"
#include "storage/testing/refused_calls.h"
#include "storage/testing/scratch_directory.h"

namespace cairn::storage {
namespace {

namespace fs = std::filesystem;

std::string read_all(const Storage& storage, std::string_view name) {
  return read_small(storage, name, 1 << 20).value();
}

enum class TestedStorage : std::uint8_t { kPosix, kModel, kBucket };

class StorageConformance : public testing::TestWithParam<TestedStorage> {
 protected:
  StorageConformance() {
    switch (GetParam()) {
      case TestedStorage::kPosix: storage_ = PosixStorage::make_directory(scratch_.path()).value(); break;
      case TestedStorage::kModel: storage_ = std::make_unique<ModelStorage>(); break;
      case TestedStorage::kBucket:
        storage_ = std::make_unique<BucketStorage>(std::make_shared<MemoryObjectStore>(), "s3://bucket", "prefix");
        break;
    }
  }
  // A bucket has no folders: a folder is there while an object is in it.
  bool has_folders() const { return GetParam() != TestedStorage::kBucket; }
  ScratchDirectory scratch_;
  std::unique_ptr<Storage> storage_;
};

TEST_P(StorageConformance, ReadsTheWrittenBytes) {
  for (const bool direct : {false, true}) {
    const std::string name = direct ? "direct" : "buffered";
    auto file = storage_->create(name, {.size = 10'000, .direct_io = direct}).value();
    os::PageBuffer buffer(12'288);
    std::memset(buffer.data(), 'x', buffer.size());
    ASSERT_TRUE(file->write_at(0, buffer.span()));
    ASSERT_TRUE(file->finish(10'000, Durability::kDurable));
    EXPECT_EQ(read_all(*storage_, name), std::string(10'000, 'x'));
  }
}

TEST_P(StorageConformance, NeverReplacesOnCreation) {
  ASSERT_TRUE(storage_->create_whole("old", "1", Durability::kDurable));
  const auto again = storage_->create_whole("old", "3", Durability::kDurable);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().error_number(), EEXIST);
  const auto file = storage_->create("old", {});
  EXPECT_FALSE(file && (*file)->finish(0, Durability::kDurable));
  EXPECT_EQ(read_all(*storage_, "old"), "1");
}

TEST_P(StorageConformance, NeverReplacesOnPublish) {
  if (!storage_->has_rename()) GTEST_SKIP() << "no rename";
  ASSERT_TRUE(storage_->create_whole("old", "1", Durability::kDurable));
  ASSERT_TRUE(storage_->create_whole("new", "2", Durability::kDurable));
  EXPECT_FALSE(storage_->publish("new", "old"));
  EXPECT_EQ(read_all(*storage_, "old"), "1");
  EXPECT_FALSE(storage_->create("old", {}));
  ASSERT_TRUE(storage_->publish("new", "free"));
  EXPECT_EQ(read_all(*storage_, "free"), "2");
  EXPECT_EQ(storage_->open("new", false).error().code(), ErrorCode::kNotFound);
}

TEST_P(StorageConformance, ReplacesOnReplace) {
  if (!storage_->has_rename()) GTEST_SKIP() << "no rename";
  ASSERT_TRUE(storage_->create_whole("old", "1", Durability::kDurable));
  ASSERT_TRUE(storage_->create_whole("new", "2", Durability::kDurable));
  ASSERT_TRUE(storage_->replace("new", "old"));
  EXPECT_EQ(read_all(*storage_, "old"), "2");
}

TEST_P(StorageConformance, ListsAndRemoves) {
  ASSERT_TRUE(storage_->make_folder("folder"));
  EXPECT_EQ(storage_->make_folder("folder").has_value(), !has_folders());
  ASSERT_TRUE(storage_->create_whole("folder/file", "1", Durability::kDurable));
  EXPECT_EQ(storage_->list("folder").value().size(), 1u);
  EXPECT_EQ(storage_->remove_folder("folder").has_value(), !has_folders());
  EXPECT_TRUE(storage_->remove("folder/file"));
  EXPECT_TRUE(storage_->remove("folder/file"));
  EXPECT_TRUE(storage_->sync("folder"));
  EXPECT_TRUE(storage_->remove_folder("folder"));
  EXPECT_TRUE(storage_->list("").value().empty());
  EXPECT_TRUE(storage_->sync());
}

TEST_P(StorageConformance, JoinsAFolderThatIsThere) {
  EXPECT_EQ(storage_->join_folder("folder").error().code(), ErrorCode::kNotFound);
  ASSERT_TRUE(storage_->make_folder("folder"));
  EXPECT_EQ(storage_->join_folder("folder").has_value(), has_folders());
  ASSERT_TRUE(storage_->create_whole("folder/file", "1", Durability::kDurable));
  EXPECT_EQ(read_all(*storage_, "folder/file"), "1");
  ASSERT_TRUE(storage_->remove("folder/file"));
  ASSERT_TRUE(storage_->remove_folder("folder"));
  EXPECT_EQ(storage_->join_folder("folder").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(storage_->list("folder").error().code(), ErrorCode::kNotFound);
}

TEST_P(StorageConformance, RewritesOnlyAFileThatIsThere) {
  EXPECT_EQ(storage_->touch("file").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(storage_->rewrite("file", "ab").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(storage_->touched_at("file").error().code(), ErrorCode::kNotFound);
  ASSERT_TRUE(storage_->create_whole("file", "12345", Durability::kDurable));
  ASSERT_TRUE(storage_->touch("file"));
  ASSERT_TRUE(storage_->rewrite("file", "ab"));
  EXPECT_TRUE(storage_->touched_at("file"));
  EXPECT_EQ(read_all(*storage_, "file"), "ab345");
}

TEST_P(StorageConformance, ReadsNothingBeyondTheEnd) {
  ASSERT_TRUE(storage_->create_whole("file", "12345", Durability::kDurable));
  const auto file = storage_->open("file", false).value();
  std::byte bytes[4];
  EXPECT_TRUE(file->read_at(1, bytes));
  EXPECT_EQ(file->read_at(2, bytes).error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(file->read_at(~std::uint64_t{0}, bytes).error().code(), ErrorCode::kCorrupt);
}

std::string name_of_tested(const testing::TestParamInfo<TestedStorage>& which) {
  switch (which.param) {
    case TestedStorage::kPosix: return "Posix";
    case TestedStorage::kModel: return "Model";
    default: return "Bucket";
  }
}

INSTANTIATE_TEST_SUITE_P(Storages, StorageConformance,
                         testing::Values(TestedStorage::kPosix, TestedStorage::kModel, TestedStorage::kBucket),
                         name_of_tested);

TEST(PosixStorage, RefusesNamesThatLeadOutside) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  for (const std::string_view name : {"", "/etc/passwd", "../x", "a/../../x", ".."}) {
    EXPECT_EQ(storage->open(name, true).error().code(), ErrorCode::kUnsafe) << name;
    EXPECT_EQ(storage->remove(name).error().code(), ErrorCode::kUnsafe) << name;
  }
}

TEST(PosixStorage, FollowsALinkOnlyWhenAsked) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path() / "checkpoint").value();
  std::ofstream(scratch.path() / "secret") << "secret";
  fs::create_symlink("../secret", scratch.path() / "checkpoint/link");
  fs::create_directory_symlink("..", scratch.path() / "checkpoint/up");
  EXPECT_EQ(storage->open("link", false).error().code(), ErrorCode::kUnsafe);
  EXPECT_EQ(storage->open("up/secret", false).error().code(), ErrorCode::kUnsafe);
  EXPECT_TRUE(storage->open("link", true));
  EXPECT_FALSE(storage->remove("link"));
  EXPECT_FALSE(storage->remove("up/secret"));
  EXPECT_TRUE(fs::exists(scratch.path() / "secret"));
}

TEST(PosixStorage, NeverWaitsOnAPipe) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  ASSERT_EQ(mkfifo((scratch.path() / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(storage->open("pipe", false).error().code(), ErrorCode::kUnsafe);
  EXPECT_EQ(storage->open("pipe", true).error().code(), ErrorCode::kUnsafe);
}

TEST(PosixStorage, DirectReadsGiveTheSameBytes) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  std::string text(3 * os::kPageBytes + 100, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7);
  ASSERT_TRUE(storage->create_whole("file", text, Durability::kDurable));
  const auto file = storage->open("file", false).value();
  os::PageBuffer buffer(4 * os::kPageBytes);
  ASSERT_TRUE(file->read_direct_at(os::kPageBytes, buffer.span().first(3 * os::kPageBytes)));
  EXPECT_EQ(std::memcmp(buffer.data(), text.data() + os::kPageBytes, text.size() - os::kPageBytes), 0);
  EXPECT_FALSE(file->read_direct_at(8 * os::kPageBytes, buffer.span()));
}

// Features that a file system, kernel or container may lack, one set of refused calls per case.
struct Poorer {
  const char* what;
  std::vector<RefusedCall> refused;
};

std::vector<Poorer> poorer_places() {
  constexpr unsigned kRenameFlags = 4;
  std::vector<Poorer> places;
  for (const int error : {EINVAL, ENOSYS, EOPNOTSUPP, EPERM}) {
    const RefusedCall no_replace{SYS_renameat2, error, kRenameFlags};
    places.push_back({"no RENAME_NOREPLACE", {no_replace}});
    places.push_back({"no RENAME_NOREPLACE and no links", {no_replace, {SYS_linkat, error}}});
  }
  for (const int error : {ENOSYS, EPERM}) places.push_back({"no openat2", {{SYS_openat2, error}}});
  places.push_back({"no links", {{SYS_linkat, ENOENT}}});
  return places;
}

// Runs `work` once per case of poorer_places().
void in_poorer_places(const std::function<void(PosixStorage&, const fs::path&)>& work) {
  for (const Poorer& place : poorer_places()) {
    SCOPED_TRACE(std::string(place.what) + ": " + std::strerror(place.refused.front().error));
    const ScratchDirectory scratch;
    const auto storage = PosixStorage::make_directory(scratch.path()).value();
    if (!run_with_refused(place.refused, [&] { work(*storage, scratch.path()); })) GTEST_SKIP() << "no seccomp here";
  }
}

TEST(PosixStorage, PublishesWithoutOptionalCalls) {
  in_poorer_places([](PosixStorage& storage, const fs::path&) {
    ASSERT_TRUE(storage.make_folder("mine"));
    ASSERT_TRUE(storage.create_whole("mine/a", "1", Durability::kDurable));
    const auto published = storage.publish("mine/a", "final");
    ASSERT_TRUE(published) << published.error().what();
    EXPECT_EQ(read_all(storage, "final"), "1");
    EXPECT_TRUE(storage.list("mine").value().empty());
    ASSERT_TRUE(storage.create_whole("mine/b", "2", Durability::kDurable));
    const auto again = storage.publish("mine/b", "final");
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().error_number(), EEXIST);
    EXPECT_EQ(read_all(storage, "final"), "1");
    EXPECT_EQ(read_all(storage, "mine/b"), "2");
    EXPECT_EQ(storage.publish("mine/none", "other").error().code(), ErrorCode::kNotFound);
    EXPECT_EQ(storage.list("").value().size(), 2u);
  });
}

TEST(PosixStorage, CreatesWithoutOptionalCalls) {
  in_poorer_places([](PosixStorage& storage, const fs::path&) {
    ASSERT_TRUE(storage.create_whole("file", "1", Durability::kDurable));
    EXPECT_EQ(read_all(storage, "file"), "1");
    EXPECT_EQ(storage.create_whole("file", "2", Durability::kDurable).error().error_number(), EEXIST);
    EXPECT_EQ(read_all(storage, "file"), "1");
    EXPECT_EQ(storage.create_whole("none/file", "3", Durability::kDurable).error().code(), ErrorCode::kNotFound);
    EXPECT_EQ(storage.list("").value().size(), 1u);
  });
}

TEST(PosixStorage, RefusesLinksWithoutNewCalls) {
  in_poorer_places([](PosixStorage& storage, const fs::path& path) {
    ASSERT_TRUE(storage.make_folder("folder"));
    ASSERT_TRUE(storage.create_whole("folder/file", "1", Durability::kDurable));
    fs::create_symlink("folder/file", path / "link");
    fs::create_directory_symlink("folder", path / "other");
    EXPECT_EQ(read_all(storage, "folder/file"), "1");
    EXPECT_EQ(read_all(storage, "./folder//file"), "1");
    EXPECT_EQ(storage.open("link", false).error().code(), ErrorCode::kUnsafe);
    EXPECT_EQ(storage.open("other/file", false).error().code(), ErrorCode::kUnsafe);
    EXPECT_EQ(storage.open("folder/file/x", false).error().code(), ErrorCode::kUnavailable);
    EXPECT_EQ(storage.open("none/file", false).error().code(), ErrorCode::kNotFound);
    EXPECT_FALSE(storage.remove("other/file"));
    EXPECT_TRUE(fs::exists(path / "folder/file"));
  });
}

TEST(PosixStorage, PublishesDespiteALostAnswer) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  ASSERT_TRUE(storage->make_folder("mine"));
  ASSERT_TRUE(storage->create_whole("mine/file", "1", Durability::kDurable));
  // The state after a network file system has run the first call, lost the answer and sent the call again.
  fs::create_hard_link(scratch.path() / "mine/file", scratch.path() / "final");
  const auto published = storage->publish("mine/file", "final");
  ASSERT_TRUE(published) << published.error().what();
  EXPECT_EQ(read_all(*storage, "final"), "1");
  EXPECT_TRUE(storage->list("mine").value().empty());
}

TEST(PosixStorage, PublishesThoughTheOldNameStays) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  ASSERT_TRUE(storage->create_whole("file", "1", Durability::kDurable));
  const std::vector<RefusedCall> refused{{SYS_renameat2, EINVAL, 4}, {SYS_unlinkat, EBUSY}};
  const bool ran = run_with_refused(refused, [&] { EXPECT_TRUE(storage->publish("file", "final")); });
  if (!ran) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(read_all(*storage, "final"), "1");
}

TEST(PosixStorage, FailedPublishLeavesNoFile) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  ASSERT_TRUE(storage->create_whole("file", "1", Durability::kDurable));
  std::vector<RefusedCall> refused{{SYS_renameat2, EINVAL}, {SYS_linkat, EPERM}, {SYS_renameat, EIO}};
  const bool ran = run_with_refused(refused, [&] { EXPECT_FALSE(storage->publish("file", "final")); });
  if (!ran) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(storage->list("").value().size(), 1u);
  EXPECT_EQ(read_all(*storage, "file"), "1");
}

TEST(PosixStorage, ListingFailsIfAStatFails) {
  for (const int error : {EIO, ESTALE, ENOENT}) {
    SCOPED_TRACE(std::strerror(error));
    const ScratchDirectory scratch;
    const auto storage = PosixStorage::make_directory(scratch.path()).value();
    ASSERT_TRUE(storage->create_whole("file", "1", Durability::kDurable));
    Result<std::vector<ListedFile>> listed = std::vector<ListedFile>();
    constexpr unsigned kFlags = 3;
    const RefusedCall refused{SYS_newfstatat, error, kFlags, AT_SYMLINK_NOFOLLOW};
    const bool ran = run_with_refused({refused}, [&] { listed = storage->list(""); });
    if (!ran) GTEST_SKIP() << "no seccomp here";
    if (error == ENOENT) {  // the file was removed after its name had been read
      ASSERT_TRUE(listed) << listed.error().what();
      EXPECT_TRUE(listed->empty());
    } else {
      ASSERT_FALSE(listed);
      EXPECT_EQ(listed.error().file(), "file");
      EXPECT_EQ(listed.error().error_number(), error);
      EXPECT_EQ(listed.error().code(), ErrorCode::kUnavailable) << "kNotFound would mean that the folder is gone";
    }
  }
}

// pwrite accepts no byte, and reports no error.
TEST(PosixStorage, FailsIfNoByteIsWritten) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  ASSERT_TRUE(storage->create_whole("old", "1", Durability::kDurable));
  const auto file = storage->create("file", {}).value();
  const bool ran = run_with_refused({{SYS_pwrite64, 0}}, [&] {
    const std::byte bytes[4]{};
    for (const auto& written : {file->write_at(8, bytes), storage->create_whole("new", "1", Durability::kBuffered),
                                storage->rewrite("old", "2")}) {
      ASSERT_FALSE(written);
      EXPECT_EQ(written.error().code(), ErrorCode::kUnavailable) << written.error().what();
      EXPECT_TRUE(written.error().file() && written.error().offset()) << written.error().what();
    }
  });
  if (!ran) GTEST_SKIP() << "no seccomp here";
  EXPECT_FALSE(fs::exists(scratch.path() / "new"));
  EXPECT_EQ(read_all(*storage, "old"), "1");
}

TEST(PosixStorage, SyncsParentsInSeveralThreads) {
  constexpr int kRounds = 50;
  constexpr int kThreads = 4;
  const ScratchDirectory scratch;
  for (int round = 0; round < kRounds; ++round) {
    fs::path directory = scratch.path() / std::to_string(round);
    for (int depth = 0; depth < 8; ++depth) directory /= "folder";
    const auto storage = PosixStorage::make_directory(directory).value();
    std::barrier start(kThreads);
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&] {
        start.arrive_and_wait();
        const auto synced = storage->sync("");
        EXPECT_TRUE(synced) << synced.error().what();
      });
    }
  }
}

TEST(PosixStorage, NamesAParentThatFailsToSync) {
  const ScratchDirectory scratch;
  const auto made = PosixStorage::make_directory(scratch.path() / "parent" / "checkpoint").value();
  const auto opened = PosixStorage::open_directory(scratch.path() / "parent" / "checkpoint").value();
  Result<void> of_made;
  Result<void> of_opened;
  const bool ran = run_with_refused({{SYS_fsync, EIO}}, [&] {
    of_made = made->sync("");
    of_opened = opened->sync("");
  });
  if (!ran) GTEST_SKIP() << "no seccomp here";
  ASSERT_FALSE(of_made || of_opened);
  EXPECT_EQ(of_made.error().file(), scratch.path().string());
  EXPECT_EQ(of_opened.error().file(), (scratch.path() / "parent").string());
}

// Runs `work` in a child process with private mounts and a new file system at /proc/fs. `work` returns whether all went
// well. False if the process may not mount.
bool run_in_mount_below_proc(const std::function<bool(const fs::path&)>& work) {
  constexpr int kNoMounts = 99;
  const pid_t child = fork();
  if (child == 0) {
    const fs::path place = "/proc/fs";
    const bool mounted = unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         mount("none", place.c_str(), "tmpfs", 0, nullptr) == 0;
    _exit(!mounted ? kNoMounts : work(place) ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoMounts) return false;
  EXPECT_EQ(status, 0);
  return true;
}

TEST(PosixStorage, SyncsBelowAnUnsyncableParent) {
  const bool ran = run_in_mount_below_proc([](const fs::path& place) {
    const os::Fd above(::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fsync(above.get()) == 0) return false;  // the test would prove nothing
    return PosixStorage::open_directory(place).value()->sync("").has_value();
  });
  if (!ran) GTEST_SKIP() << "needs the right to mount";
}

constexpr uid_t kOtherUser = 54321;

// Runs `work` as another user in a child process. `work` returns whether all went well.
bool run_as_other_user(const std::function<bool()>& work) {
  const pid_t child = fork();
  if (child == 0)
    _exit(setgroups(0, nullptr) == 0 && setresgid(kOtherUser, kOtherUser, kOtherUser) == 0 &&
                  setresuid(kOtherUser, kOtherUser, kOtherUser) == 0 && work()
              ? 0
              : 1);
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0;
}

// A world-writable directory, and a second user with access.
class SharedDirectory : public testing::Test {
 protected:
  SharedDirectory() : directory_(::open(scratch_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    fs::permissions(scratch_.path(), fs::perms::all);
  }
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  }
  std::unique_ptr<PosixStorage> open() const { return PosixStorage::open_directory(scratch_.path()).value(); }
  // The second user renames the folder and makes a new folder of the old name, with a file inside.
  void replace(const std::string& folder) const {
    ASSERT_TRUE(run_as_other_user([&] {
      const int directory = directory_.get();
      const bool replaced = renameat(directory, folder.c_str(), directory, "stolen") == 0 &&
                            mkdirat(directory, folder.c_str(), 0777) == 0;
      const std::string planted = folder + "/planted";
      const os::Fd file(openat(directory, planted.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666));
      return replaced && file;
    }));
  }

  ScratchDirectory scratch_;
  os::Fd directory_;
};

TEST_F(SharedDirectory, FoldersAdmitTheirOwnerAlone) {
  for (const mode_t mask : {0u, 022u, 077u}) {
    SCOPED_TRACE(mask);
    const mode_t before = umask(mask);
    const std::string name = "folder" + std::to_string(mask);
    const auto made = open()->make_folder(name);
    umask(before);
    ASSERT_TRUE(made) << made.error().what();
    EXPECT_EQ(fs::status(scratch_.path() / name).permissions(), fs::perms::owner_all);
    EXPECT_TRUE(run_as_other_user([&] {
      const os::Fd inside(openat(directory_.get(), (name + "/x").c_str(), O_WRONLY | O_CREAT, 0666));
      return !inside && errno == EACCES;
    }));
  }
}

TEST_F(SharedDirectory, KeepsTheGroupOfItsFiles) {
  constexpr gid_t kGroup = 4321;
  ASSERT_EQ(fchown(directory_.get(), 0, kGroup), 0);
  ASSERT_EQ(fchmod(directory_.get(), 02775), 0);
  const mode_t before = umask(0277);  // a mode of 0500 after mkdir: make_folder must repair the mode
  const auto storage = open();
  const auto made = storage->make_folder("folder");
  umask(before);
  ASSERT_TRUE(made) << made.error().what();
  ASSERT_TRUE(storage->create_whole("folder/file", "1", Durability::kDurable));
  ASSERT_TRUE(storage->publish("folder/file", "file"));
  struct stat status {};
  ASSERT_EQ(stat((scratch_.path() / "file").c_str(), &status), 0);
  EXPECT_EQ(status.st_gid, kGroup);
  ASSERT_EQ(stat((scratch_.path() / "folder").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 02700u);
}

TEST_F(SharedDirectory, NoticesThatAFolderWasReplaced) {
  const auto storage = open();
  ASSERT_TRUE(storage->make_folder("folder"));
  ASSERT_TRUE(storage->create_whole("folder/file", "1", Durability::kDurable));
  replace("folder");
  EXPECT_EQ(storage->list("folder").error().code(), ErrorCode::kUnsafe);
  EXPECT_EQ(storage->sync("folder").error().code(), ErrorCode::kUnsafe);
  EXPECT_EQ(storage->publish("folder/file", "final").error().code(), ErrorCode::kUnsafe);
  EXPECT_EQ(storage->replace("folder/file", "final").error().code(), ErrorCode::kUnsafe);
  EXPECT_EQ(storage->remove_folder("folder").error().code(), ErrorCode::kUnsafe);
  EXPECT_FALSE(fs::exists(scratch_.path() / "final"));
  // Names below "folder" still lead to the held folder.
  EXPECT_EQ(storage->open("folder/planted", false).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(read_all(*storage, "folder/file"), "1");
  ASSERT_TRUE(storage->create_whole("folder/mark", "2", Durability::kDurable));
  EXPECT_FALSE(fs::exists(scratch_.path() / "folder/mark"));
  EXPECT_TRUE(fs::exists(scratch_.path() / "stolen/mark"));
}

TEST_F(SharedDirectory, RefusesFoldersOfOtherUsers) {
  ASSERT_TRUE(open()->make_folder("folder"));
  replace("folder");
  const auto joined = open()->join_folder("folder");
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code(), ErrorCode::kUnsafe);
  EXPECT_EQ(joined.error().file(), "folder");
  EXPECT_TRUE(fs::exists(scratch_.path() / "folder/planted"));
  // A link to a folder of the current user is refused too.
  fs::create_directory_symlink("stolen", scratch_.path() / "link");
  EXPECT_EQ(open()->join_folder("link").error().code(), ErrorCode::kUnsafe);
}

TEST(PosixStorage, SaysThatTheDirectoryIsMissing) {
  const ScratchDirectory scratch;
  EXPECT_EQ(PosixStorage::open_directory(scratch.path() / "none").error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cairn::storage
