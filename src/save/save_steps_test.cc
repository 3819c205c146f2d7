// The steps of a save, by a caller that passes tickets and results between the ranks.
#include <cairn/cairn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/open_calls.h"
#include "format/dcp/metadata_template.h"
#include "save/save_calls.h"
#include "storage/testing/model_storage.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

using storage::ModelStorage;

constexpr std::int64_t kStepElements = 1000;
constexpr std::uint32_t kRanks = 2;

// The state of a rank at a step: one tensor and one value, under keys of the rank.
class Share {
 public:
  Share(std::uint32_t rank, int step) : data_(kStepElements, static_cast<float>(step * 10 + static_cast<int>(rank))) {
    EXPECT_TRUE(state_.add_value(value_of(rank), Value(step)));  // entry 0; in the file the value is after the tensor
    EXPECT_TRUE(
        state_.add_tensor(tensor_of(rank), TensorView::contiguous(data_.data(), DType::kFloat32, {kStepElements})));
  }
  static std::string tensor_of(std::uint32_t rank) { return "tensor" + std::to_string(rank); }
  static std::string value_of(std::uint32_t rank) { return "value" + std::to_string(rank); }

  StateDict& dict() { return state_; }
  // The common step of tensor and value, -1 if the two differ.
  int found(std::uint32_t rank) const {
    const int step = static_cast<int>(*state_.value(value_of(rank))->get_if<std::int64_t>());
    const Share whole(rank, step);
    return data_ == whole.data_ ? step : -1;
  }

 private:
  std::vector<float> data_;
  StateDict state_;
};

// Collects the ranks' results, as a coordinator does, and makes the metadata.
class Results {
 public:
  void add(std::uint32_t rank, const RankShare& share) {
    const auto first = static_cast<std::uint32_t>(files_.size());
    const auto moved = [first](ItemLocation place) {
      place.file += first;
      return place;
    };
    for (const PublishedFile& file : share.files()) {
      catalog_.files.push_back(file.name);
      files_.push_back(file);
    }
    CatalogTensor tensor;
    tensor.fqn = Share::tensor_of(rank);
    tensor.shape = {kStepElements};
    tensor.boxes = {0, kStepElements};
    tensor.locations = {moved(share.places()[1])};
    catalog_.keys.push_back({true, static_cast<std::uint32_t>(catalog_.tensors.size())});
    catalog_.tensors.push_back(std::move(tensor));
    catalog_.keys.push_back({false, static_cast<std::uint32_t>(catalog_.values.size())});
    catalog_.values.push_back({Share::value_of(rank), moved(share.places()[0])});
  }

  std::string metadata() {
    catalog_.version = "1.0.0";
    catalog_.save_id = "any";
    catalog_.checkpoint_id = "model";
    const auto metadata = dcp::MetadataTemplate::make(catalog_);
    return metadata->render("any", "model", catalog_.files);
  }
  const std::vector<PublishedFile>& files() const { return files_; }

 private:
  Catalog catalog_;
  std::vector<PublishedFile> files_;
};

constexpr std::uint32_t kNobody = UINT32_MAX;

// A save of `step` in which only the ranks up to `last_rank` write.
bool save_in_steps(ModelStorage& disk, int step, std::uint32_t last_rank = kNobody) {
  const SaveOptions options{.thread_count = 1};
  auto claim = checkpointer::claim_in({"model", ModelStorage::opening(disk)}, options);
  if (!claim) return false;
  Results results;
  std::vector<RankShare> shares;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    if (rank > last_rank) return false;
    Share state(rank, step);
    auto share = checkpointer::write_share_in({"model", ModelStorage::opening(disk)}, claim->ticket(), rank,
                                              state.dict(), options);
    if (!share) return false;
    results.add(rank, *share);
    share->hand_over();
    shares.push_back(std::move(*share));
  }
  return claim->commit(results.metadata(), results.files()).has_value();
}

// The step of the checkpoint; 0 without a checkpoint, -1 if the checkpoint is damaged or mixes steps.
int saved_step(ModelStorage& disk) {
  const auto checkpoint = checkpointer::open_in(ModelStorage::view_of(disk));
  if (!checkpoint) return checkpoint.error().code() == ErrorCode::kNotFound ? 0 : -1;
  std::optional<int> found;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    Share target(rank, 0);
    const auto report = checkpoint->load(target.dict());
    EXPECT_TRUE(report) << report.error().what();
    if (!report || (found && target.found(rank) != *found)) return -1;
    found = target.found(rank);
  }
  return *found;
}

TEST(SaveSteps, MakeACheckpointAsASaveDoes) {
  ModelStorage disk;
  for (const int step : {1, 2}) {
    ASSERT_TRUE(save_in_steps(disk, step));
    EXPECT_EQ(saved_step(disk), step);
    EXPECT_EQ(disk.list("").value().size(), 1u + kRanks);  // the first save's files are gone
  }
}

TEST(SaveSteps, MissingRankLeavesNoLitter) {
  ModelStorage disk;
  EXPECT_FALSE(save_in_steps(disk, 1, 0));
  EXPECT_TRUE(disk.list("").value().empty());  // the files had DCP's plain names
  ASSERT_TRUE(save_in_steps(disk, 2));
  EXPECT_FALSE(save_in_steps(disk, 3, 0));
  EXPECT_EQ(disk.list("").value().size(), 1u + kRanks);  // the files had names with a save id
  EXPECT_EQ(saved_step(disk), 2);
}

TEST(SaveSteps, WithdrawAShareNotHandedOver) {
  ModelStorage disk;
  const auto claim = checkpointer::claim_in({"model", ModelStorage::opening(disk)}, {});
  ASSERT_TRUE(claim);
  const std::size_t before = disk.list("").value().size();
  {
    Share state(0, 1);
    const auto share =
        checkpointer::write_share_in({"model", ModelStorage::opening(disk)}, claim->ticket(), 0, state.dict(), {});
    ASSERT_TRUE(share);
    EXPECT_EQ(disk.list("").value().size(), before + 1);
  }
  EXPECT_EQ(disk.list("").value().size(), before);
}

TEST(SaveSteps, RefuseUnreadableMetadata) {
  ModelStorage disk;
  ASSERT_TRUE(save_in_steps(disk, 1));
  for (const bool is_pickle : {false, true}) {
    auto claim = checkpointer::claim_in({"model", ModelStorage::opening(disk)}, {});
    ASSERT_TRUE(claim);
    Share state(0, 2);
    auto share =
        checkpointer::write_share_in({"model", ModelStorage::opening(disk)}, claim->ticket(), 0, state.dict(), {});
    ASSERT_TRUE(share);
    share->hand_over();
    Results results;
    results.add(0, *share);
    const auto report = claim->commit(is_pickle ? results.metadata() : "no pickle", {});  // and no files
    ASSERT_FALSE(report);
    if (is_pickle) {
      EXPECT_EQ(report.error().code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(report.error().file(), share->files()[0].name);
    }
    EXPECT_FALSE(claim->may_have_committed());
    EXPECT_EQ(disk.list("").value().size(), 1u + kRanks);  // withdrawn at once
    EXPECT_FALSE(claim->commit(results.metadata(), results.files()));
  }
  EXPECT_EQ(saved_step(disk), 1);
}

TEST(SaveSteps, RefuseATicketThatIsNone) {
  ModelStorage disk;
  const auto claim = checkpointer::claim_in({"model", ModelStorage::opening(disk)}, {});
  ASSERT_TRUE(claim);
  Share state(0, 1);
  const std::string ticket = claim->ticket();
  for (std::size_t length = 0; length < ticket.size(); ++length) {
    EXPECT_FALSE(checkpointer::write_share_in({"model", ModelStorage::opening(disk)}, ticket.substr(0, length), 0,
                                              state.dict(), {}));
  }
  EXPECT_FALSE(checkpointer::write_share_in({"model", ModelStorage::opening(disk)}, ticket + "x", 0, state.dict(), {}));
}

TEST(SaveSteps, CrashLeavesTheOldOrTheNew) {
  for (std::uint64_t crash_at = 0;; ++crash_at) {
    SCOPED_TRACE(testing::Message() << "crash_at=" << crash_at);
    ModelStorage disk;
    ASSERT_TRUE(save_in_steps(disk, 1));
    disk.crash_at(disk.operation_count() + crash_at);
    const bool saved = save_in_steps(disk, 2);
    const bool crashed = disk.fault_fired();
    disk.lose_power(crash_at);
    const int found = saved_step(disk);
    EXPECT_TRUE(found == 2 || (!saved && found == 1)) << found;
    EXPECT_TRUE(save_in_steps(disk, 3));
    EXPECT_EQ(saved_step(disk), 3);
    if (!crashed) break;  // the loop covered every operation
  }
}

TEST(SaveSteps, FailedOperationLeavesNoLitter) {
  for (std::uint64_t number = 0;; ++number) {
    SCOPED_TRACE(testing::Message() << "number=" << number);
    ModelStorage disk;
    ASSERT_TRUE(save_in_steps(disk, 1));
    const std::size_t files_before = disk.list("").value().size();
    disk.fail_at(disk.operation_count() + number, Error::from_errno(EIO, "injected"));
    const bool saved = save_in_steps(disk, 2);
    const bool fired = disk.fault_fired();
    const int found = saved_step(disk);
    EXPECT_TRUE(found == 2 || (!saved && found == 1)) << found;
    if (found == 1) EXPECT_LE(disk.list("").value().size(), files_before + 1);
    if (!fired) break;
  }
}

// Two ranks that hold a row each of "rows", and both the whole of "both".
class ModelSteps : public testing::Test {
 protected:
  ModelSteps() { options_.durability = Durability::kBuffered; }

  static std::vector<HeldBox> held_by(std::int64_t rank) {
    return {{"rows", DType::kFloat32, {2, 3}, Box::make({rank, 0}, {1, 3}).value()},
            {"both", DType::kFloat32, {3}, Box::make({0}, {3}).value()}};
  }
  Result<SaveClaim> claim(bool sharded) {
    options_.safetensors = SafetensorsForm{{}, sharded, false};
    return SaveClaim::make_model(directory_, {held_by(0), held_by(1)}, options_);
  }
  // Writes the share of a rank, and returns the published boxes.
  std::vector<PublishedBox> write(const ModelShare& share, std::uint32_t rank) {
    StateDict state;
    const std::vector<HeldBox> held = held_by(rank);
    for (const std::uint32_t index : share.boxes) {
      const HeldBox& box = held[index];
      const TensorView view = TensorView::contiguous(elements_.data(), box.dtype, box.box.sizes());
      EXPECT_TRUE(state.add_chunk(Path{box.fqn}, view, box.shape, box.box.offsets()));
    }
    auto written = RankShare::write_model(directory_, share.ticket, rank, state, options_);
    EXPECT_TRUE(written) << written.error().what();
    std::vector<PublishedBox> boxes;
    for (std::size_t i = 0; i < share.boxes.size(); ++i) {
      const ItemLocation& place = written->places()[i];
      boxes.push_back({held[share.boxes[i]].fqn, written->files()[place.file].name, place.length});
    }
    written->hand_over();
    return boxes;
  }
  std::vector<PublishedBox> write_all(const SaveClaim& claim) {
    std::vector<PublishedBox> boxes;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      for (PublishedBox& box : write(claim.model_shares()[rank], rank)) boxes.push_back(std::move(box));
    }
    return boxes;
  }
  std::size_t file_count() const {
    const auto files = std::filesystem::directory_iterator(directory_);
    return static_cast<std::size_t>(std::distance(begin(files), end(files)));
  }

  storage::ScratchDirectory scratch_;
  std::filesystem::path directory_ = scratch_.path() / "model";
  std::vector<float> elements_{1, 2, 3};
  SaveOptions options_;
};

TEST_F(ModelSteps, WriteTheBoxesOfTheShares) {
  auto claimed = claim(true);
  ASSERT_TRUE(claimed) << claimed.error().what();
  EXPECT_EQ(claimed->model_shares()[0].boxes, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(claimed->model_shares()[1].boxes, (std::vector<std::uint32_t>{0}));
  const auto committed = claimed->commit_model(write_all(*claimed));
  ASSERT_TRUE(committed) << committed.error().what();
  EXPECT_EQ(file_count(), kRanks);
  const auto opened = open(directory_);
  ASSERT_TRUE(opened) << opened.error().what();
  EXPECT_EQ(opened->catalog().find_tensor("rows")->chunk_count(), 2u);
  std::vector<float> both(3);
  const TensorView target = TensorView::contiguous(both.data(), DType::kFloat32, {3});
  ASSERT_TRUE(opened->read("both", Box::make({0}, {3}).value(), target));
  EXPECT_EQ(both, elements_);
}

TEST_F(ModelSteps, RefuseAModelLackingABox) {
  for (const bool has_another : {false, true}) {
    auto claimed = claim(true);
    ASSERT_TRUE(claimed) << claimed.error().what();
    std::vector<PublishedBox> boxes = write_all(*claimed);
    boxes.pop_back();
    if (has_another) boxes.push_back(boxes.front());
    const auto committed = claimed->commit_model(boxes);
    ASSERT_FALSE(committed);
    EXPECT_EQ(committed.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(committed.error().key(), "rows");
    EXPECT_EQ(file_count(), 0u);
  }
}

TEST_F(ModelSteps, RefuseAStateUnlikeTheShare) {
  auto claimed = claim(true);
  ASSERT_TRUE(claimed);
  const StateDict empty;
  const auto written = RankShare::write_model(directory_, claimed->model_shares()[0].ticket, 0, empty, options_);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(ModelSteps, WholeFilesNeedWholeTensors) {
  const auto refused = claim(false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().key(), "rows");
  options_.safetensors = SafetensorsForm{};
  auto claimed = SaveClaim::make_model(directory_, {{held_by(0)[1]}, {held_by(1)[1]}}, options_);
  ASSERT_TRUE(claimed) << claimed.error().what();
  EXPECT_EQ(claimed->model_shares()[0].boxes.size() + claimed->model_shares()[1].boxes.size(), 1u);
}

TEST_F(ModelSteps, RefuseAClaimOfTheOtherForm) {
  Share old(0, 1);
  ASSERT_TRUE(save(directory_, old.dict()));
  auto claimed = SaveClaim::make(directory_);
  ASSERT_TRUE(claimed) << claimed.error().what();
  const auto committed = claimed->commit_model({});
  ASSERT_FALSE(committed);
  EXPECT_EQ(committed.error().code(), ErrorCode::kInvalidArgument);
  Share loaded(0, 0);
  ASSERT_TRUE(load(directory_, loaded.dict()));
  EXPECT_EQ(loaded.found(0), 1);
}

}  // namespace
}  // namespace cairn
