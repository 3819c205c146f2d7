// Saves of a whole directory that are killed at each of their changing operations, and refused exchanges.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sanitizers.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "commit/directory/directory_commit.h"
#include "commit/directory/new_directory.h"
#include "commit/metadata_in_place.h"
#include "commit/testing/dead_lease.h"
#include "commit/testing/one_save.h"
#include "commit/testing/rank_saves.h"
#include "data_file/plain_file.h"
#include "storage/posix/posix_storage.h"
#include "storage/testing/change_watching_storage.h"
#include "storage/testing/refused_calls.h"
#include "storage/testing/scratch_directory.h"

namespace cairn::commit {
namespace {

namespace fs = std::filesystem;
using storage::PosixStorage;
using storage::Storage;

// A storage whose process is killed right before a changing operation, in the directory, in the directory above or in
// one of its folders.
class MortalStorage final : public storage::ChangeWatchingStorage {
 public:
  // `left`: the number of operations that succeed.
  MortalStorage(std::unique_ptr<Storage> storage, std::shared_ptr<int> left)
      : ChangeWatchingStorage(std::move(storage)), left_(std::move(left)) {}
  Result<std::unique_ptr<Storage>> open_parent() const override { return mortal(ChangeWatchingStorage::open_parent()); }
  Result<std::unique_ptr<Storage>> open_folder(std::string_view name) const override {
    return mortal(ChangeWatchingStorage::open_folder(name));
  }

 private:
  Result<std::unique_ptr<Storage>> mortal(Result<std::unique_ptr<Storage>> storage) const {
    if (!storage) return storage;
    return std::unique_ptr<Storage>(std::make_unique<MortalStorage>(*std::move(storage), left_));
  }
  void before_change() override {
    if ((*left_)-- != 0) return;
    raise(SIGKILL);
    pause();
  }

  std::shared_ptr<int> left_;
};

class DirectoryCommits : public testing::Test {
 protected:
  static SaveIdentity identity_of(std::uint64_t number) {
    SaveIdentity identity = save_number(number);
    identity.form = SaveForm::kDirectory;
    return identity;
  }

  // The files `model_0.pt` and `save_<number>.pt`. `left`: as for MortalStorage.
  Result<void> save(std::uint64_t number, const std::optional<int>& left = {}) const {
    const SaveIdentity identity = identity_of(number);
    const fs::path made = root_ / name_of_new_directory({identity.save_id, "step_7"});
    std::unique_ptr<Storage> disk = PosixStorage::make_directory(made).value();
    if (left) disk = std::make_unique<MortalStorage>(std::move(disk), std::make_shared<int>(*left));
    CAIRN_TRY_ASSIGN(const auto transaction, claim_directory(*disk, identity, {"step_7"}));
    RankFiles files(*disk, identity);
    manifest::CommitRecord record;
    const std::string text = "save " + std::to_string(number);
    for (const std::string& name : {std::string("model_0.pt"), "save_" + std::to_string(number) + ".pt"}) {
      CAIRN_TRY_ASSIGN(const std::string place, files.private_name(name));
      CAIRN_TRY(disk->create_whole(place, text, Durability::kDurable));
      CAIRN_TRY(files.publish({name}, Durability::kDurable));
      record.files.push_back({name, text.size(), 0});
    }
    files.hand_over();
    CAIRN_TRY_ASSIGN(const CommitReport report, transaction->commit("", record, Durability::kDurable));
    for (const std::string& warning : report.warnings) {
      EXPECT_NE(warning.find("late.txt"), std::string::npos) << warning;
    }
    return {};
  }

  // Saves in a process that is killed; false: the process has ended by itself.
  bool was_killed(std::uint64_t number, int left) const {
    const pid_t child = fork();
    if (child == 0) _exit(save(number, left) ? 0 : 1);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
  }

  // Save 2 over save 1, killed when its new directory, `made`, has the record.
  void kill_before_exchange(const fs::path& made) const {
    for (int left = 0; !fs::exists(made / kDirectoryRecordName); ++left) {
      fs::remove_all(root_);
      fs::create_directories(root_);
      ASSERT_TRUE(save(1));
      ASSERT_TRUE(was_killed(2, left)) << left;
    }
  }

  // The number of the save in place, all of whose files are there with nothing else but hidden names; 0: none.
  int number_in_place() const {
    if (!fs::exists(root_ / "step_7")) return 0;
    std::map<std::string, std::string> texts;
    for (const auto& file : fs::directory_iterator(root_ / "step_7")) {
      const std::string name = file.path().filename().string();
      if (name.starts_with('.')) continue;
      std::ifstream stream(file.path());
      texts[name] = std::string(std::istreambuf_iterator<char>(stream), {});
    }
    for (const int number : {1, 2, 3}) {
      const std::string text = "save " + std::to_string(number);
      if (texts ==
          std::map<std::string, std::string>{{"model_0.pt", text}, {"save_" + std::to_string(number) + ".pt", text}}) {
        return number;
      }
    }
    ADD_FAILURE() << "a directory of two saves, or of a part of one";
    return -1;
  }

  static std::string names_in(const fs::path& directory) {
    std::set<std::string> names;
    for (const auto& file : fs::directory_iterator(directory)) names.insert(file.path().filename().string());
    std::string text;
    for (const std::string& name : names) text += name + " ";
    return text;
  }

  void expect_only(int number) const {
    EXPECT_EQ(number_in_place(), number);
    EXPECT_EQ(names_in(root_), "step_7 ");
    const std::string files = ".cairn-record model_0.pt save_" + std::to_string(number) + ".pt ";
    EXPECT_EQ(names_in(root_ / "step_7"), files);
  }

  storage::ScratchDirectory scratch_;
  fs::path root_ = scratch_.path() / "run";
};

TEST_F(DirectoryCommits, KeepAWholeSaveAtEachKill) {
  for (const bool overwrites : {false, true}) {
    int old_ones = 0;
    int new_ones = 0;
    for (int left = 0;; ++left) {
      fs::remove_all(root_);
      fs::create_directories(root_);
      if (overwrites) ASSERT_TRUE(save(1));
      const bool killed = was_killed(2, left);
      const int number = number_in_place();
      if (!killed) {
        expect_only(2);
        break;
      }
      number == 2 ? ++new_ones : ++old_ones;
      EXPECT_EQ(number, number == 2 ? 2 : overwrites ? 1 : 0) << left;
      const auto saved = save(3);
      ASSERT_TRUE(saved) << saved.error().what();
      expect_only(3);
    }
    EXPECT_GT(old_ones, 8);
    EXPECT_GT(new_ones, 2);
  }
}

// The trial names the files that the removal removes, and the directory in place stays as it is.
void expect_clean(const fs::path& root) {
  const auto parent = PosixStorage::open_directory(root).value();
  for (const NewDirectory& directory : new_directories_in(*parent).value()) {
    const auto sizes_of = [](const RemovedSaves& removed) {
      std::map<std::string, std::uint64_t> sizes;
      for (const RemovedSave& save : removed.saves) {
        for (const RemovedFile& file : save.files) sizes[file.name] = file.bytes;
      }
      return sizes;
    };
    const auto names_before = std::distance(fs::recursive_directory_iterator(root), {});
    const RemovedSaves tried = remove_if_dead(*parent, directory, Removal::kTry);
    EXPECT_EQ(std::distance(fs::recursive_directory_iterator(root), {}), names_before);
    const RemovedSaves removed = remove_if_dead(*parent, directory, Removal::kDo);
    EXPECT_TRUE(tried.problems.empty() && removed.problems.empty());
    EXPECT_EQ(sizes_of(tried), sizes_of(removed));
    EXPECT_TRUE(removed.of_other_users.empty());
  }
}

TEST_F(DirectoryCommits, CleanAfterEachKill) {
  bool killed = true;
  int removals = 0;
  int young = 0;
  for (int left = 0; killed; ++left) {
    fs::remove_all(root_);
    fs::create_directories(root_);
    ASSERT_TRUE(save(1));
    killed = was_killed(2, left);
    const int number = number_in_place();
    const bool has_new_directory = std::distance(fs::directory_iterator(root_), {}) == 2;
    expect_clean(root_);
    EXPECT_EQ(number_in_place(), number) << left;
    const bool is_clean = std::distance(fs::directory_iterator(root_), {}) == 1;
    if (has_new_directory) ++(is_clean ? removals : young);
  }
  EXPECT_GT(removals, 8);
  EXPECT_LT(young, 4) << "killed before the lease, in a directory that looks like that of a beginning save";
}

// A rank's part of a save of two ranks. The file of rank n is `save_n.pt`.
Result<RankSaveReport> finish_rank(RankSave& save, std::uint32_t rank) {
  CAIRN_TRY(save.enter({rank, 2, 0}));
  const std::string text = "rank " + std::to_string(rank);
  const auto bytes = std::as_bytes(std::span(text));
  const data_file::PlainFile file{data_file::PlainFile::Form::kBytes, {bytes.size()}};
  const auto image = file.image(bytes).value();
  RankSaveOptions options;
  options.write.thread_count = 1;
  std::optional<CommitRequest> request;
  if (rank == 0) request = CommitRequest{[] { return Result<std::string>(""); }, {{"save_0.pt"}, {"save_1.pt"}}, {}};
  return save.finish({{"save_" + std::to_string(rank) + ".pt", image.get()}}, request, options);
}

TEST_F(DirectoryCommits, AgreeWithADeadCoordinator) {
  constexpr int kStep = kSanitized ? 6 : 2;
  bool killed = true;
  int committed = 0;
  for (int left = 0; killed; left += kStep) {
    fs::remove_all(root_);
    fs::create_directories(root_);
    ASSERT_TRUE(save(1));
    const SaveIdentity identity = identity_of(2);
    const fs::path made = root_ / name_of_new_directory({identity.save_id, "step_7"});
    TicketPipe tickets;
    Process coordinator([&] {
      auto disk =
          std::make_unique<MortalStorage>(PosixStorage::make_directory(made).value(), std::make_shared<int>(left));
      const auto save = RankSave::claim(std::move(disk), identity, 0, {.directory_name = "step_7"}).value();
      tickets.send(save->ticket());
      (void)finish_rank(*save, 0);
    });
    Result<RankSaveReport> report = Error(ErrorCode::kInternal, "no ticket");
    if (const std::optional<SaveTicket> ticket = tickets.receive()) {
      const auto save = RankSave::join(PosixStorage::open_directory(made).value(), *ticket, {}, "step_7");
      report = finish_rank(*save, 1);
    }
    killed = coordinator.was_killed();
    const bool is_new = fs::exists(root_ / "step_7" / "save_0.pt");
    EXPECT_EQ(is_new, fs::exists(root_ / "step_7" / "save_1.pt") && !fs::exists(root_ / "step_7" / "model_0.pt"));
    EXPECT_EQ(report.has_value(), is_new) << left << (report ? "" : report.error().what());
    committed += is_new ? 1 : 0;
    ASSERT_TRUE(save(3));
    expect_only(3);
  }
  EXPECT_GT(committed, 1);
}

// A directory of the package without a record, killed at each removal: the rest can still be removed.
TEST_F(DirectoryCommits, EndARemovalThatWasKilled) {
  bool killed = true;
  for (int left = 0; killed; ++left) {
    fs::remove_all(root_);
    fs::create_directories(root_ / "step_7");
    for (int rank = 0; rank < 12; ++rank) {
      std::ofstream(root_ / "step_7" / ("save_" + std::to_string(rank) + ".pt")) << "of the package";
    }
    killed = was_killed(2, left);
    ASSERT_TRUE(save(3)) << left;
    expect_only(3);
  }
}

TEST_F(DirectoryCommits, RefuseWithoutAnExchange) {
  fs::create_directories(root_);
  ASSERT_TRUE(save(1));
  const bool ran = storage::run_with_refused({{SYS_renameat2, EINVAL, 4, RENAME_EXCHANGE}}, [&] {
    const auto saved = save(2);
    ASSERT_FALSE(saved);
    EXPECT_EQ(saved.error().code(), ErrorCode::kUnsupported) << saved.error().what();
  });
  if (!ran) GTEST_SKIP() << "needs filters of system calls";
  expect_only(1);
}

// Another program adds a file right before the exchange.
class AddingStorage final : public storage::ChangeWatchingStorage {
 public:
  AddingStorage(std::unique_ptr<Storage> storage, fs::path file)
      : ChangeWatchingStorage(std::move(storage)), file_(std::move(file)) {}
  Result<std::unique_ptr<Storage>> open_parent() const override {
    CAIRN_TRY_ASSIGN(std::unique_ptr<Storage> parent, ChangeWatchingStorage::open_parent());
    return std::unique_ptr<Storage>(std::make_unique<AddingStorage>(std::move(parent), file_));
  }
  Result<void> exchange_folders(std::string_view one, std::string_view two) override {
    std::ofstream(file_) << "irreplaceable";
    return ChangeWatchingStorage::exchange_folders(one, two);
  }

 private:
  void before_change() override {}
  fs::path file_;
};

TEST_F(DirectoryCommits, KeepAFileThatCameLate) {
  fs::create_directories(root_);
  ASSERT_TRUE(save(1));
  const SaveIdentity identity = identity_of(2);
  const std::string made = name_of_new_directory({identity.save_id, "step_7"});
  AddingStorage disk(PosixStorage::make_directory(root_ / made).value(), root_ / "step_7" / "late.txt");
  const auto transaction = claim_directory(disk, identity, {"step_7"}).value();
  const auto report = transaction->commit("", manifest::CommitRecord(), Durability::kDurable);
  ASSERT_TRUE(report) << report.error().what();
  ASSERT_EQ(report->warnings.size(), 1u);
  EXPECT_EQ(names_in(root_ / made), "late.txt ");
  // A later save can't tell whose file it is, either.
  ASSERT_TRUE(save(3));
  EXPECT_EQ(names_in(root_ / made), "late.txt ");
}

// Another save of the same parent takes a paused save for dead.
TEST_F(DirectoryCommits, FailIfTakenForDead) {
  fs::create_directories(root_);
  ASSERT_TRUE(save(1));
  const SaveIdentity identity = identity_of(2);
  const fs::path made = root_ / name_of_new_directory({identity.save_id, "step_7"});
  const auto disk = PosixStorage::make_directory(made).value();
  auto transaction = claim_directory(*disk, identity, {"step_7"}).value();
  RankFiles files(*disk, identity);
  ASSERT_TRUE(disk->create_whole(files.private_name("model_0.pt").value(), "save 2", Durability::kDurable));
  ASSERT_TRUE(files.publish({"model_0.pt"}, Durability::kDurable));
  files.hand_over();
  leave_dead_lease(*disk, folder_of_save(identity));
  ASSERT_TRUE(save(3));  // into the same name: by then the paused save is superseded, too
  EXPECT_FALSE(fs::exists(made));
  manifest::CommitRecord record;
  record.files.push_back({"model_0.pt", 6, 0});
  EXPECT_FALSE(transaction->commit("", record, Durability::kDurable));
  transaction.reset();
  expect_only(3);
}

// A save that was killed while it asked whether the file system can exchange folders.
TEST_F(DirectoryCommits, RemoveTheFoldersOfATrial) {
  fs::create_directories(root_);
  ASSERT_TRUE(save(1));
  const SaveIdentity identity = identity_of(2);
  const fs::path made = root_ / name_of_new_directory({identity.save_id, "step_7"});
  const auto disk = PosixStorage::make_directory(made).value();
  const auto transaction = claim_directory(*disk, identity, {"step_7"}).value();
  for (const std::string_view name : storage::kExchangeTrialNames) fs::create_directory(made / name);
  leave_dead_lease(*disk, folder_of_save(identity));
  ASSERT_TRUE(save(3));
  expect_only(3);
}

// The parent of a cleaner: between the opening of a new directory and the judgement, the save of the directory commits
// and dies.
class ExchangingParent final : public storage::ChangeWatchingStorage {
 public:
  ExchangingParent(std::unique_ptr<Storage> storage, std::function<void()> exchange)
      : ChangeWatchingStorage(std::move(storage)), exchange_(std::move(exchange)) {}
  Result<std::unique_ptr<Storage>> open_folder(std::string_view name) const override {
    auto opened = ChangeWatchingStorage::open_folder(name);
    if (opened && name.starts_with(kNewDirectoryPrefix)) std::exchange(exchange_, [] {})();
    return opened;
  }

 private:
  void before_change() override {}
  mutable std::function<void()> exchange_;
};

TEST_F(DirectoryCommits, KeepADirectoryThatCommits) {
  const SaveIdentity identity = identity_of(2);
  const NewDirectory directory{identity.save_id, "step_7"};
  const fs::path made = root_ / name_of_new_directory(directory);
  kill_before_exchange(made);
  const auto exchange = [&] {
    const int moved = renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, (root_ / "step_7").c_str(), RENAME_EXCHANGE);
    ASSERT_EQ(moved, 0);
    fs::remove_all(root_ / "step_7" / folder_of_save(identity));
  };
  ExchangingParent parent(PosixStorage::open_directory(root_).value(), exchange);
  (void)remove_if_dead(parent, directory, Removal::kDo);
  EXPECT_EQ(number_in_place(), 2);
  (void)remove_if_dead(parent, directory, Removal::kDo);
  expect_only(2);
}

// The old directory keeps a file of a user, also after further saves.
TEST_F(DirectoryCommits, KeepAForeignFileOfOldOnes) {
  fs::create_directories(root_);
  ASSERT_TRUE(save(1));
  const NewDirectory old{identity_of(2).save_id, "step_7"};
  const fs::path made = root_ / name_of_new_directory(old);
  fs::create_directories(made);
  for (const char* name : {"model_0.pt", "notes.txt"}) std::ofstream(made / name) << "irreplaceable";
  fs::last_write_time(made, fs::file_time_type::clock::now() - std::chrono::hours(2));
  const auto parent = PosixStorage::open_directory(root_).value();
  const RemovedSaves removed = remove_if_dead(*parent, old, Removal::kDo);
  EXPECT_TRUE(removed.saves.empty());
  ASSERT_EQ(removed.problems.size(), 1u);
  EXPECT_NE(removed.problems[0].find("notes.txt"), std::string::npos);
  EXPECT_EQ(names_in(made), "model_0.pt notes.txt ");
}

// The files of a dead save go while the directory is locked: the lock file is the last.
TEST_F(DirectoryCommits, HoldTheLockToTheLastFile) {
  const NewDirectory directory{identity_of(2).save_id, "step_7"};
  kill_before_exchange(root_ / name_of_new_directory(directory));
  std::vector<std::string> removed;
  class NotingStorage final : public storage::ChangeWatchingStorage {
   public:
    NotingStorage(std::unique_ptr<Storage> storage, std::vector<std::string>& removed)
        : ChangeWatchingStorage(std::move(storage)), removed_(removed) {}
    Result<std::unique_ptr<Storage>> open_folder(std::string_view name) const override {
      CAIRN_TRY_ASSIGN(std::unique_ptr<Storage> opened, ChangeWatchingStorage::open_folder(name));
      return std::unique_ptr<Storage>(std::make_unique<NotingStorage>(std::move(opened), removed_));
    }
    Result<void> remove(std::string_view name) override {
      removed_.emplace_back(name);
      return ChangeWatchingStorage::remove(name);
    }

   private:
    void before_change() override {}
    std::vector<std::string>& removed_;
  };
  NotingStorage parent(PosixStorage::open_directory(root_).value(), removed);
  EXPECT_EQ(remove_if_dead(parent, directory, Removal::kDo).saves.size(), 1u);
  ASSERT_GT(removed.size(), 4u);
  EXPECT_EQ(removed.back(), storage::kLockName);
  EXPECT_EQ(std::count(removed.begin(), removed.end(), storage::kLockName), 1);
}

TEST_F(DirectoryCommits, AreSupersededByAnotherJob) {
  fs::create_directories(root_);
  const SaveIdentity identity = identity_of(2);
  const auto disk = PosixStorage::make_directory(root_ / name_of_new_directory({identity.save_id, "step_7"})).value();
  auto transaction = claim_directory(*disk, identity, {"step_7"}).value();
  fs::create_directories(root_ / "step_7");
  std::ofstream(root_ / "step_7" / "model_0.pt") << "of another program";
  const auto committed = transaction->commit("", manifest::CommitRecord(), Durability::kDurable);
  ASSERT_FALSE(committed);
  EXPECT_EQ(committed.error().code(), ErrorCode::kSuperseded) << committed.error().what();
  transaction.reset();
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 1);
  EXPECT_TRUE(fs::exists(root_ / "step_7" / "model_0.pt"));
}

TEST_F(DirectoryCommits, NameTheirNewDirectories) {
  const NewDirectory directory{save_number(2).save_id, "step-7-of-9"};
  const auto parsed = new_directory_of_name(name_of_new_directory(directory));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->save_id, directory.save_id);
  EXPECT_EQ(parsed->name, directory.name);
  for (const char* other : {"step_7", ".cairn-new-", ".cairn-new-12", ".cairn-new-12-x", ".cairn-lock"}) {
    EXPECT_FALSE(new_directory_of_name(other)) << other;
  }
}

}  // namespace
}  // namespace cairn::commit
