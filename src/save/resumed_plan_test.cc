// The first save of a restarted job: the ranks go on with the plan of the checkpoint that they have loaded.
#include "save/resumed_plan.h"

#include <cairn/async_checkpointer.h>
#include <cairn/cairn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "core/checksum.h"
#include "format/dcp/metadata_decoder.h"
#include "format/dcp/metadata_template.h"
#include "format/manifest/commit_record.h"
#include "save/plan_terms.h"
#include "save/testing/named_calls.h"
#include "save_plan/local_plans.h"
#include "storage/testing/scratch_directory.h"

namespace cairn::checkpointer {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

const Names kPlanned = {"smallest", "gather", "scatter"};
const Names kResumed = {"smallest", "smallest"};  // a vote, and the confirmation

// The state of one of three ranks: a row, twice, of a sharded tensor; a tensor that all ranks have, of which each rank
// writes a part; a value. Rank 2 has only the value, and writes no file.
struct RankState {
  static constexpr std::int64_t kCommon = 600'000;  // two parts
  static constexpr std::int64_t kWithoutCommon = -1;
  RankState(std::size_t rank, int step, std::int64_t extra = 0)
      : row(16), common(kCommon), more(static_cast<std::size_t>(std::max(extra, std::int64_t{0}))) {
    std::iota(row.begin(), row.end(), static_cast<float>(100 * step + 20 * static_cast<int>(rank)));
    std::iota(common.begin(), common.end(), static_cast<float>(step));
    EXPECT_TRUE(state.add_value(Path{"step"}, Value(step)));
    // The process keeps plans of several tests: no rank may have an equal part of two of them.
    if (extra > 0) EXPECT_TRUE(state.add_value(Path{"extra " + std::to_string(extra)}, Value(step)));
    if (rank == 2) return;
    const auto first = static_cast<std::int64_t>(rank);
    for (const std::int64_t half : {0, 1}) {
      const auto view = TensorView::contiguous(row.data() + 8 * half, DType::kFloat32, {1, 8});
      EXPECT_TRUE(state.add_chunk(Path{"rows"}, view, {4, 8}, {first + 2 * half, 0}));
    }
    if (extra == kWithoutCommon) return;
    TensorTraits traits;
    traits.replicated = true;
    EXPECT_TRUE(
        state.add_tensor(Path{"common"}, TensorView::contiguous(common.data(), DType::kFloat32, {kCommon}), traits));
    if (extra == 0 || rank == 0) return;
    EXPECT_TRUE(state.add_tensor(Path{"more"}, TensorView::contiguous(more.data(), DType::kFloat32, {extra})));
  }
  std::vector<float> row, common, more;
  StateDict state;
};

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ResumedPlans : public testing::Test {
 protected:
  // Saves by new checkpointers, as a restarted job does. Returns the names of the collective calls of rank 0.
  Names save_async(const fs::path& directory, int step, std::int64_t extra = 0) {
    Names of_first;
    as_three_ranks([&](std::size_t rank, Collectives& collectives) {
      AsyncCheckpointer checkpointer;
      Names names;
      const auto counted = named_calls(collectives, names);
      RankState mine(rank, step, extra);
      AsyncSaveOptions options;
      options.save.collectives = counted.get();
      const auto save = checkpointer.save(directory, mine.state, options);
      ASSERT_TRUE(save) << save.error().what();
      ASSERT_TRUE(save->write.get()) << save->write.get().error().what();
      if (rank == 0) of_first = names;
    });
    return of_first;
  }

  Names save_sync(const fs::path& directory, int step, std::int64_t extra = 0) {
    Names of_first;
    as_three_ranks([&](std::size_t rank, Collectives& collectives) {
      Names names;
      const auto counted = named_calls(collectives, names);
      RankState mine(rank, step, extra);
      SaveOptions options;
      options.collectives = counted.get();
      const auto saved = save(directory, mine.state, options);
      ASSERT_TRUE(saved) << saved.error().what();
      EXPECT_NE(saved->catalog, nullptr);
      if (rank == 0) of_first = names;
    });
    return of_first;
  }

  // Loads all of a checkpoint of `step`, and checks the values and the files.
  void expect_step(const fs::path& directory, int step) {
    std::vector<float> rows(32), common(RankState::kCommon);
    StateDict target;
    ASSERT_TRUE(target.add_tensor(Path{"rows"}, TensorView::contiguous(rows.data(), DType::kFloat32, {4, 8})));
    ASSERT_TRUE(target.add_tensor(Path{"common"},
                                  TensorView::contiguous(common.data(), DType::kFloat32, {RankState::kCommon})));
    const auto loaded = load(directory, target);
    ASSERT_TRUE(loaded) << loaded.error().what();
    const auto first = static_cast<float>(100 * step);
    EXPECT_EQ(rows[0], first);
    EXPECT_EQ(rows[8], first + 20);
    EXPECT_EQ(rows[16], first + 8);
    EXPECT_EQ(rows[31], first + 35);
    EXPECT_EQ(common.front(), static_cast<float>(step));
    EXPECT_EQ(common.back(), static_cast<float>(step) + RankState::kCommon - 1);
    EXPECT_TRUE(verify(directory)->problems.empty());
  }

  // Puts a `.metadata` with true checksums, of the changed catalog and record, in the place of the one in `directory`.
  static void forge(const fs::path& directory, const std::function<void(Catalog&, manifest::CommitRecord&)>& change) {
    const fs::path path = directory / ".metadata";
    const std::string bytes = read_file(path);
    auto record = manifest::read_commit_record(std::as_bytes(std::span(bytes))).value().value();
    auto decoded = dcp::decode_metadata(std::as_bytes(std::span(bytes)));
    ASSERT_TRUE(decoded);
    Catalog& catalog = decoded->catalog;
    change(catalog, record);
    const auto metadata = dcp::MetadataTemplate::make(catalog);
    ASSERT_TRUE(metadata);
    const std::string front = metadata->render(*catalog.save_id, *catalog.checkpoint_id, catalog.files);
    record.front_bytes = front.size();
    record.front_checksum = crc32(std::as_bytes(std::span(front)));
    std::ofstream(path, std::ios::binary) << front + manifest::encode_commit_record(record);
  }
  static CatalogTensor& tensor_of(Catalog& catalog, std::string_view fqn) {
    return *std::ranges::find(catalog.tensors, fqn, &CatalogTensor::fqn);
  }

  storage::ScratchDirectory scratch_;
  fs::path first_ = scratch_.path() / "step 1";
  fs::path second_ = scratch_.path() / "step 2";
  fs::path third_ = scratch_.path() / "step 3";
};

TEST_F(ResumedPlans, GatherNothingAfterAsyncSave) {
  EXPECT_EQ(save_async(first_, 1), kPlanned);
  EXPECT_EQ(save_async(second_, 2), kPlanned) << "this job has loaded nothing";
  ASSERT_TRUE(open_to_load(second_));
  EXPECT_EQ(save_async(third_, 3), kResumed);
  expect_step(third_, 3);
  const auto second = open(second_);
  const auto third = open(third_);
  for (const std::string_view key : {"rows", "common"}) {
    const CatalogTensor& before = *second->catalog().find_tensor(key);
    const CatalogTensor& after = *third->catalog().find_tensor(key);
    EXPECT_EQ(after.boxes, before.boxes);
    EXPECT_TRUE(std::ranges::equal(after.locations, before.locations, [](const ItemLocation& a, const ItemLocation& b) {
      return a.file == b.file && a.offset == b.offset && a.length == b.length;
    }));
  }
}

TEST_F(ResumedPlans, GatherNothingAfterBlockingSave) {
  save_sync(first_, 1);
  ASSERT_TRUE(open_to_load(first_));
  EXPECT_EQ(save_async(second_, 2), kResumed);
  expect_step(second_, 2);
}

// The plans belong to the process, so this test has a state of its own.
TEST_F(ResumedPlans, BlockingSavesReuseThePlan) {
  const Names planned = {"smallest", "gather", "scatter", "gather", "broadcast"};
  const Names kept = {"smallest", "gather", "broadcast"};
  EXPECT_EQ(save_sync(first_, 1, 77), planned);
  EXPECT_EQ(save_sync(second_, 2, 77), kept);
  EXPECT_EQ(save_sync(second_, 3, 77), kept) << "names with the save id: the directory is in use";
  EXPECT_EQ(save_sync(third_, 4, 78), planned);
  expect_step(first_, 1);
  expect_step(second_, 3);
  expect_step(third_, 4);
}

TEST_F(ResumedPlans, AreConfirmedOnce) {
  save_async(first_, 1, 55);
  ASSERT_TRUE(open_to_load(first_));
  const Names resumed = {"smallest", "smallest", "gather", "broadcast"};
  const Names kept = {"smallest", "gather", "broadcast"};
  EXPECT_EQ(save_sync(second_, 2, 55), resumed);
  EXPECT_EQ(save_sync(third_, 3, 55), kept);
  expect_step(second_, 2);
  expect_step(third_, 3);
}

TEST_F(ResumedPlans, AreRecordedAgain) {
  save_sync(first_, 1);
  ASSERT_TRUE(open_to_load(first_));
  EXPECT_EQ(save_async(second_, 2), kResumed);
  fs::remove_all(first_);
  ASSERT_TRUE(open_to_load(second_));
  EXPECT_EQ(save_async(third_, 3), kResumed);
  expect_step(third_, 3);
}

TEST_F(ResumedPlans, MayReplaceTheirOwnDirectory) {
  save_sync(first_, 1);
  ASSERT_TRUE(open_to_load(first_));
  EXPECT_EQ(save_async(first_, 2), kResumed);
  EXPECT_EQ(save_async(first_, 3), kPlanned) << "the checkpoint that was loaded is replaced";
  expect_step(first_, 3);
}

// A stranger's `.metadata` may name code in its pickle, which Cairn never runs. The next checkpoint must not hand the
// name on to stock torch, which runs what a pickle names.
TEST_F(ResumedPlans, DoNotHandOnCodeOfThePickle) {
  save_sync(first_, 1);
  const fs::path path = first_ / ".metadata";
  std::string bytes = read_file(path);
  auto record = manifest::read_commit_record(std::as_bytes(std::span(bytes))).value().value();
  std::string front = bytes.substr(0, record.front_bytes);
  ASSERT_TRUE(front.ends_with("ub."));  // SETITEMS, BUILD, STOP
  front.insert(front.size() - 3,
               "\x8c\x04more"
               "cstranger\nfunction\n"
               "\x8c\x04true"
               "\x85R");
  record.front_bytes = front.size();
  record.front_checksum = crc32(std::as_bytes(std::span(front)));
  std::ofstream(path, std::ios::binary) << front + manifest::encode_commit_record(record);
  ASSERT_TRUE(open_to_load(first_));
  EXPECT_EQ(save_async(second_, 2), kResumed);
  EXPECT_NE(read_file(path).find("stranger"), std::string::npos);
  EXPECT_EQ(read_file(second_ / ".metadata").find("stranger"), std::string::npos);
  expect_step(second_, 2);
}

// The next checkpoint must not hand on a forged place, shape or path.
TEST_F(ResumedPlans, DoNotHandOnForgedMetadata) {
  const std::vector<std::function<void(Catalog&)>> changes{
      [](Catalog&) {},
      [](Catalog& catalog) {
        std::swap(tensor_of(catalog, "rows").locations[0], tensor_of(catalog, "rows").locations[1]);
      },
      [](Catalog& catalog) { tensor_of(catalog, "rows").locations[0].offset += 64; },
      [](Catalog& catalog) { tensor_of(catalog, "common").dtype = DType::kInt32; },
      [](Catalog& catalog) { tensor_of(catalog, "common").requires_grad = true; },
      [](Catalog& catalog) { catalog.values[0].location.length = 1; },
      [](Catalog& catalog) { catalog.keys.pop_back(); },
      [](Catalog& catalog) { catalog.paths[0].second = Path{"elsewhere"}; },
      [](Catalog& catalog) {  // a tensor that no rank has, in the bytes of another
        catalog.keys.push_back({true, static_cast<std::uint32_t>(catalog.tensors.size())});
        const CatalogTensor& rows = tensor_of(catalog, "rows");
        catalog.tensors.push_back(
            {"stranger", DType::kFloat32, Extents{1, 8}, false, {0, 0, 1, 8}, {rows.locations[0]}});
      }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    save_sync(first_, 1);
    forge(first_, [&](Catalog& catalog, manifest::CommitRecord&) { changes[i](catalog); });
    ASSERT_TRUE(open_to_load(first_));
    const Names names = save_async(second_, 2);
    EXPECT_EQ(std::ranges::count(names, "gather"), i == 0 ? 0 : 1) << i;
    expect_step(second_, 2);
    const auto second = open(second_);
    EXPECT_EQ(second->catalog().keys.size(), 3u) << i;
    EXPECT_EQ(second->catalog().paths.size(), 3u) << i;
    EXPECT_EQ(second->catalog().paths[0].second, Path{second->catalog().paths[0].first}) << i;
    for (const fs::path& directory : {first_, second_}) fs::remove_all(directory);
  }
}

// Metadata and files agree, and lack a tensor of the state that the fingerprints name.
TEST_F(ResumedPlans, DoNotLeaveOutAKey) {
  save_sync(first_, 1, RankState::kWithoutCommon);
  save_sync(second_, 1);
  const std::string metadata = read_file(second_ / ".metadata");
  const auto whole = manifest::read_commit_record(std::as_bytes(std::span(metadata))).value().value();
  forge(first_, [&](Catalog&, manifest::CommitRecord& record) {
    for (std::size_t rank = 0; rank < 3; ++rank) {
      record.plan.ranks[rank].local_plan = whole.plan.ranks[rank].local_plan;
    }
  });
  ASSERT_TRUE(open_to_load(first_));
  EXPECT_EQ(save_async(third_, 3), kPlanned);
  expect_step(third_, 3);
}

// Trailers that name an item again and again would otherwise make the arena of the next save as large.
TEST_F(ResumedPlans, TakeNoItemTwice) {
  save_sync(second_, 1);
  const std::string metadata = read_file(second_ / ".metadata");
  const auto whole = manifest::read_commit_record(std::as_bytes(std::span(metadata))).value().value();
  auto claim = SaveClaim::make(first_);
  ASSERT_TRUE(claim);
  RankState mine(0, 1);
  ASSERT_TRUE(mine.state.add_chunk(Path{"rows"}, TensorView::contiguous(mine.row.data(), DType::kFloat32, {1, 8}),
                                   {4, 8}, {0, 0}));
  auto share = RankShare::write(first_, claim->ticket(), 0, mine.state);
  ASSERT_TRUE(share) << share.error().what();
  share->hand_over();
  Catalog catalog = std::move(dcp::decode_metadata(std::as_bytes(std::span(metadata)))->catalog);
  for (CatalogTensor& tensor : catalog.tensors) {
    for (ItemLocation& location : tensor.locations) location.file = 0;
  }
  for (CatalogValue& value : catalog.values) value.location.file = 0;
  catalog.files = {share->files()[0].name};
  const auto front = dcp::MetadataTemplate::make(catalog)->render("id", "checkpoint", catalog.files);
  ASSERT_TRUE(claim->commit(front, share->files()));
  forge(first_, [&](Catalog&, manifest::CommitRecord& record) {
    record.plan = whole.plan;
    for (std::size_t rank = 0; rank < 3; ++rank) record.plan.ranks[rank].file_count = rank == 0 ? 1 : 0;
  });
  ASSERT_TRUE(open_to_load(first_));
  EXPECT_EQ(save_async(third_, 3), kPlanned) << "rank 0 does not vote for the plan";
  expect_step(third_, 3);
}

TEST_F(ResumedPlans, DoNotFitAChangedStateOfOneRank) {
  save_sync(first_, 1);
  ASSERT_TRUE(open_to_load(first_));
  EXPECT_EQ(save_async(second_, 2, 100), kPlanned);
  expect_step(second_, 2);
}

// The storage does not answer within the limit of the first call.
TEST_F(ResumedPlans, AreForgottenIfTheStorageHangs) {
  save_sync(first_, 1);
  const RankState mine(1, 2);
  SaveItems items = SaveItems::make(mine.state).value();
  const std::string local_plan = save_plan::encode_local_plan(items.sources(), {}).value();
  const std::string terms = plan_terms({}, 1, 3);
  ResumeTerms request{local_plan, terms, 1, 3, false, false, "", std::chrono::milliseconds(0)};
  ASSERT_TRUE(open_to_load(first_));
  EXPECT_EQ(resume_plan(items, request), nullptr);
  request.limit = std::chrono::seconds(30);
  EXPECT_EQ(resume_plan(items, request), nullptr);
  ASSERT_TRUE(open_to_load(first_));
  EXPECT_NE(resume_plan(items, request), nullptr);
}

TEST_F(ResumedPlans, NeedAllFilesUndamaged) {
  save_sync(first_, 1);
  ASSERT_TRUE(open_to_load(first_));
  const fs::path data = first_ / "__1_0.distcp";
  ASSERT_TRUE(fs::exists(data));
  fs::resize_file(data, fs::file_size(data) - 1);
  EXPECT_EQ(save_async(second_, 2), kPlanned);
  fs::remove_all(first_);
  EXPECT_EQ(save_async(third_, 3), kPlanned);
  expect_step(second_, 2);
  expect_step(third_, 3);
}

}  // namespace
}  // namespace cairn::checkpointer
