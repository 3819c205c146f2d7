// Saves of files (AsyncSaveOptions::files): the directory that results, replaces and refuses.
#include <cairn/async_checkpointer.h>
#include <cairn/checkpoint.h>
#include <cairn/collectives.h>
#include <cairn/inspect.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "commit/directory/new_directory.h"
#include "commit/metadata_in_place.h"
#include "commit/pin.h"
#include "commit/testing/dead_lease.h"
#include "coordination/testing/as_ranks.h"
#include "format/pickle/writer.h"
#include "format/torch_file/tensor_pickle.h"
#include "storage/posix/posix_storage.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write_file(const fs::path& file, std::string_view content) { std::ofstream(file, std::ios::binary) << content; }

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.insert(entry.path().filename().string());
  return names;
}

// The files of a rank: a file of torch.save with the state {"weight": floats}, and a file of text.
class RankFiles {
 public:
  RankFiles(std::size_t rank, float value, std::size_t count = 1000) : values_(count, value) {
    const Extents shape{static_cast<std::int64_t>(count)};
    EXPECT_TRUE(
        state_.add_tensor(Path{std::to_string(rank)}, TensorView::contiguous(values_.data(), DType::kFloat32, shape)));
    pickle::Writer writer(2);
    writer.empty_dict();
    writer.text("weight");
    torch_file::write_tensor(writer, {DType::kFloat32, "0", 4 * count, 0, shape, {1}, false});
    writer.set_item();
    writer.stop();
    const std::string number = std::to_string(rank);
    files_.push_back({"model_" + number + ".pt", true, std::move(writer).take(), 1});
    files_.push_back({"config_" + number + ".json", false, "{\"rank\": " + number + "}", 0});
  }

  const StateDict& state() const { return state_; }
  AsyncSaveOptions options(Collectives* collectives = nullptr) const {
    AsyncSaveOptions options;
    options.files = files_;
    options.save.collectives = collectives;
    return options;
  }

 private:
  std::vector<float> values_;
  StateDict state_;
  std::vector<SavedFile> files_;
};

// The outcome of a whole save.
Result<AsyncSaveReport> outcome_of(Result<AsyncSave> save) {
  if (!save) return std::move(save).error();
  return save->write.get();
}

class DirectorySaves : public testing::Test {
 protected:
  Result<AsyncSaveReport> save(float value, const AsyncSaveOptions* given = nullptr) {
    const RankFiles files(0, value);
    return outcome_of(checkpointer_.save(directory_, files.state(), given != nullptr ? *given : files.options()));
  }

  // Whether the directory holds the files of save(value) and nothing else, and its parent the directory alone.
  void expect_in_place(float value) {
    EXPECT_EQ(names_in(directory_), (std::set<std::string>{".cairn-record", "config_0.json", "model_0.pt"}));
    EXPECT_EQ(names_in(root_), (std::set<std::string>{"step_7"}));
    EXPECT_EQ(content_of(directory_ / "config_0.json"), "{\"rank\": 0}");
    std::vector<float> loaded(1000);
    StateDict state;
    ASSERT_TRUE(state.add_tensor(Path{"weight"}, TensorView::contiguous(loaded.data(), DType::kFloat32, {1000})));
    const auto report = cairn::load(directory_ / "model_0.pt", state, {.verify = Verify::kFull});
    ASSERT_TRUE(report) << report.error().what();
    EXPECT_EQ(loaded, std::vector<float>(1000, value));
  }

  std::unique_ptr<storage::PosixStorage> storage() { return storage::PosixStorage::open_directory(root_).value(); }

  storage::ScratchDirectory scratch_;
  fs::path root_ = scratch_.path() / "run";
  fs::path directory_ = root_ / "step_7";
  AsyncCheckpointer checkpointer_;
};

TEST_F(DirectorySaves, MakeADirectoryOfFiles) {
  const auto report = save(1);
  ASSERT_TRUE(report) << report.error().what();
  EXPECT_TRUE(report->warnings.empty());
  expect_in_place(1);
}

TEST_F(DirectorySaves, NameTheFilesInTheRecord) {
  const auto report = save(1).value();
  const auto now = commit::read_metadata_in_place(*storage(), "step_7/.cairn-record").value();
  ASSERT_TRUE(now.record);
  EXPECT_EQ(now.record->save_id, report.save_id);
  ASSERT_EQ(now.record->files.size(), 2u);
  EXPECT_EQ(now.record->files[0].name, "model_0.pt");
  EXPECT_EQ(now.record->files[0].size, fs::file_size(directory_ / "model_0.pt"));
}

TEST_F(DirectorySaves, AreCheckedAgainstTheRecord) {
  ASSERT_TRUE(save(1));
  const auto intact = verify(directory_).value();
  EXPECT_EQ(intact.format, CheckpointFormat::kTorchCheckpointing);
  EXPECT_TRUE(intact.problems.empty()) << intact.problems.front().what();
  write_file(directory_ / "config_0.json", "{}");
  const auto changed = verify(directory_).value();
  ASSERT_EQ(changed.problems.size(), 1u);
  EXPECT_EQ(changed.problems[0].file(), "config_0.json");
  EXPECT_EQ(changed.problems[0].expected(), "11 bytes");
  fs::remove(directory_ / "config_0.json");
  EXPECT_EQ(verify(directory_).value().problems.size(), 1u);
}

TEST_F(DirectorySaves, ReplaceAnEarlierSave) {
  ASSERT_TRUE(save(1));
  const auto report = save(2);
  ASSERT_TRUE(report) << report.error().what();
  EXPECT_TRUE(report->warnings.empty());
  expect_in_place(2);
}

TEST_F(DirectorySaves, ReplaceFilesOfThePackage) {
  fs::create_directories(directory_);
  for (const char* name : {"metadata.pkl", "model_0.pt", "model_1.pt", "config_1.json"}) {
    write_file(directory_ / name, "x");
  }
  ASSERT_TRUE(save(3));
  expect_in_place(3);
}

TEST_F(DirectorySaves, TakeAnEmptyDirectory) {
  fs::create_directories(directory_);
  ASSERT_TRUE(save(3));
  expect_in_place(3);
}

TEST_F(DirectorySaves, FollowALinkAtTheName) {
  ASSERT_TRUE(save(1));
  const fs::path link = scratch_.path() / "latest";
  fs::create_directory_symlink(directory_, link);
  const RankFiles files(0, 4);
  const auto report = outcome_of(checkpointer_.save(link, files.state(), files.options()));
  ASSERT_TRUE(report) << report.error().what();
  EXPECT_TRUE(fs::is_symlink(link));
  expect_in_place(4);
}

TEST_F(DirectorySaves, RefuseFilesOfOthers) {
  const std::vector<std::set<std::string>> directories{{"thesis.tex"},
                                                       {"IMG_0000.jpg", "IMG_0001.jpg"},
                                                       {"shard_00001.tar.gz"},
                                                       {"model_1.pt"},
                                                       {"config_0.json"},
                                                       {"metadata.pkl", "model_0.pt", "notes.txt"},
                                                       {".metadata", "__0_0.distcp"}};
  for (const std::set<std::string>& names : directories) {
    fs::remove_all(root_);
    fs::create_directories(directory_);
    for (const std::string& name : names) write_file(directory_ / name, "irreplaceable");
    const auto report = save(1);
    ASSERT_FALSE(report) << *names.begin();
    EXPECT_EQ(report.error().code(), ErrorCode::kInvalidArgument) << report.error().what();
    EXPECT_EQ(names_in(directory_), names);
    EXPECT_EQ(names_in(root_), (std::set<std::string>{"step_7"}));
  }
}

TEST_F(DirectorySaves, KeepFilesBesideACheckpoint) {
  ASSERT_TRUE(save(1));
  write_file(directory_ / "eval_results.txt", "irreplaceable");
  const auto report = save(2);
  ASSERT_FALSE(report);
  EXPECT_NE(std::string(report.error().what()).find("eval_results.txt"), std::string::npos) << report.error().what();
  EXPECT_TRUE(fs::exists(directory_ / "eval_results.txt"));
}

TEST_F(DirectorySaves, RefuseAFolderInTheDirectory) {
  ASSERT_TRUE(save(1));
  fs::create_directories(directory_ / "logs");
  const auto report = save(2);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kInvalidArgument) << report.error().what();
  EXPECT_EQ(names_in(root_), (std::set<std::string>{"step_7"}));
}

TEST_F(DirectorySaves, RefuseAPinnedCheckpoint) {
  ASSERT_TRUE(save(1));
  write_file(directory_ / commit::kPinName, "for the evaluation");
  const auto report = save(2);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kUnavailable) << report.error().what();
  EXPECT_TRUE(fs::exists(directory_ / "model_0.pt"));
}

TEST_F(DirectorySaves, RefuseToOverwriteIfAsked) {
  ASSERT_TRUE(save(1));
  AsyncSaveOptions options = RankFiles(0, 2).options();
  options.save.overwrite = false;
  const auto report = save(2, &options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kInvalidArgument);
  expect_in_place(1);
}

TEST_F(DirectorySaves, RefuseFoldersInFileNames) {
  for (const char* name : {"rank_0/model.pt", "../model.pt", ".hidden", ""}) {
    AsyncSaveOptions options;
    options.files = {{name, false, "x", 0}};
    const auto saved = outcome_of(checkpointer_.save(directory_, StateDict(), options));
    EXPECT_FALSE(saved) << name;
  }
  EXPECT_FALSE(fs::exists(root_) && !names_in(root_).empty());
}

TEST_F(DirectorySaves, RefuseTensorsWithoutAFile) {
  const RankFiles files(0, 1);
  AsyncSaveOptions options = files.options();
  options.files->front().tensor_count = 0;
  const auto saved = outcome_of(checkpointer_.save(directory_, files.state(), options));
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(DirectorySaves, WriteFilesWithoutBytes) {
  AsyncSaveOptions options;
  options.files = {{"raw_0.bin", false, "", 0}};
  const auto saved = outcome_of(checkpointer_.save(directory_, StateDict(), options));
  ASSERT_TRUE(saved) << saved.error().what();
  EXPECT_EQ(fs::file_size(directory_ / "raw_0.bin"), 0u);
}

// A save that was killed before its commit, and a save that was killed after the exchange, before the removal.
TEST_F(DirectorySaves, RemoveFilesOfDeadSaves) {
  ASSERT_TRUE(save(1));
  const SaveId committed = commit::read_metadata_in_place(*storage(), "step_7/.cairn-record").value().record->save_id;
  const SaveId killed{1, 2};
  const fs::path before = root_ / commit::name_of_new_directory({killed, "step_7"});
  const fs::path after = root_ / commit::name_of_new_directory({committed, "step_7"});
  const fs::path begun = root_ / commit::name_of_new_directory({SaveId{9, 9}, "step_8"});
  for (const fs::path& left : {before, after, begun}) {
    fs::create_directories(left);
    write_file(left / "model_0.pt", "left");
  }
  const auto opened = storage::PosixStorage::open_directory(before).value();
  ASSERT_TRUE(opened->make_folder(commit::folder_of(killed)));
  commit::leave_dead_lease(*opened, commit::folder_of(killed));
  ASSERT_TRUE(save(2));
  EXPECT_FALSE(fs::exists(before));
  EXPECT_FALSE(fs::exists(after));
  EXPECT_TRUE(fs::exists(begun));  // maybe another save that has just begun
}

TEST_F(DirectorySaves, BringTheFilesOfAllRanks) {
  for (const float value : {1.0F, 2.0F}) {
    std::atomic<int> well = 0;
    as_ranks(3, [&](std::size_t rank, Collectives& ranks) {
      AsyncCheckpointer checkpointer;
      const RankFiles files(rank, value, 1000 * (rank + 1));
      const auto report = outcome_of(checkpointer.save(directory_, files.state(), files.options(&ranks)));
      EXPECT_TRUE(report) << report.error().what();
      if (report) ++well;
    });
    EXPECT_EQ(well, 3);
    EXPECT_EQ(names_in(directory_).size(), 7u);
    EXPECT_EQ(names_in(root_), (std::set<std::string>{"step_7"}));
  }
}

TEST_F(DirectorySaves, RefuseOneNameOfTwoRanks) {
  as_ranks(2, [&](std::size_t, Collectives& ranks) {
    AsyncCheckpointer checkpointer;
    const RankFiles files(0, 1);
    const auto report = outcome_of(checkpointer.save(directory_, files.state(), files.options(&ranks)));
    ASSERT_FALSE(report);
    EXPECT_NE(std::string(report.error().what()).find("model_0.pt"), std::string::npos) << report.error().what();
  });
  EXPECT_TRUE(names_in(root_).empty());
}

TEST_F(DirectorySaves, FailOnAllRanksWithOne) {
  as_ranks(3, [&](std::size_t rank, Collectives& ranks) {
    AsyncCheckpointer checkpointer;
    const RankFiles files(rank, 1);
    const AsyncSaveOptions options = files.options(&ranks);
    if (rank == 1) {
      const Error error = checkpointer.abandon_save(Error(ErrorCode::kInvalidArgument, "no state here"), options);
      EXPECT_NE(std::string(error.what()).find("no state here"), std::string::npos) << error.what();
      return;
    }
    const auto report = outcome_of(checkpointer.save(directory_, files.state(), options));
    ASSERT_FALSE(report);
    EXPECT_NE(std::string(report.error().what()).find("no state here"), std::string::npos) << report.error().what();
  });
  EXPECT_TRUE(names_in(root_).empty());
}

TEST_F(DirectorySaves, StageInTheBackground) {
  const RankFiles files(0, 5);
  AsyncSaveOptions options = files.options();
  options.asynchronous_staging = true;
  auto saved = checkpointer_.save(directory_, files.state(), options);
  options.files.reset();  // the save keeps its own bytes
  ASSERT_TRUE(saved) << saved.error().what();
  ASSERT_TRUE(saved->staging.get());
  ASSERT_TRUE(saved->write.get());
  expect_in_place(5);
}

}  // namespace
}  // namespace cairn
