// The layout of a save as a safetensors model: the names of the files, and the file of each tensor.
#include "save/model_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "commit/testing/one_save.h"

namespace cairn::checkpointer {
namespace {

using Names = std::vector<std::string>;

// The states of the ranks of a save. All chunks are of float32 tensors with two dimensions.
class States {
 public:
  explicit States(std::size_t ranks) : states_(ranks) {}

  void add(std::size_t rank, const std::string& key, Extents shape, Extents offsets, const Extents& sizes) {
    memory_.emplace_back(static_cast<std::size_t>(element_count(sizes).value()));
    const TensorView view = TensorView::contiguous(memory_.back().data(), DType::kFloat32, sizes);
    ASSERT_TRUE(states_[rank].add_chunk(Path{key}, view, std::move(shape), std::move(offsets)));
  }
  void add_whole(std::size_t rank, const std::string& key, std::int64_t rows = 1) {
    add(rank, key, {rows, 4}, {0, 0}, {rows, 4});
  }
  // The rows from `first` on.
  void add_rows(std::size_t rank, const std::string& key, std::int64_t first, std::int64_t count, std::int64_t rows) {
    add(rank, key, {rows, 4}, {first, 0}, {count, 4});
  }

  save_plan::PlannedSave plan() const {
    std::vector<std::string> messages;
    for (const StateDict& state : states_) {
      messages.push_back(save_plan::encode_local_plan(SaveItems::make(state).value().sources(), {}).value());
    }
    return save_plan::plan_together(messages, false).value();
  }
  const StateDict& state(std::size_t rank) const { return states_[rank]; }

 private:
  std::vector<StateDict> states_;
  std::deque<std::vector<float>> memory_;
};

commit::SaveTicket ticket(bool fresh = true) {
  commit::SaveIdentity identity = commit::save_number(1);
  identity.form = commit::SaveForm::kModel;
  return {identity, fresh};
}

Names names_of(const SaveAssignment& assignment) {
  Names names;
  for (const AssignedFile& file : assignment.files) names.push_back(file.name);
  return names;
}

TEST(ModelLayout, GivesEachRankAShardOfEachFile) {
  States states(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    states.add_rows(rank, "a", static_cast<std::int64_t>(rank), 1, 2);
    states.add_rows(rank, "b", static_cast<std::int64_t>(rank), 1, 2);
  }
  const SafetensorsForm form{{{"a", 1}, {"b", 2}}, true, false};
  const auto layout = lay_out_model(states.plan(), form, ticket());
  ASSERT_TRUE(layout) << layout.error().what();
  EXPECT_EQ(names_of(layout->assignments[0]),
            (Names{"shard-00001-model-00001-of-00002.safetensors", "shard-00001-model-00002-of-00002.safetensors"}));
  EXPECT_EQ(names_of(layout->assignments[1]),
            (Names{"shard-00002-model-00001-of-00002.safetensors", "shard-00002-model-00002-of-00002.safetensors"}));
  for (const SaveAssignment& assignment : layout->assignments) EXPECT_EQ(assignment.file_count, 4u);
  EXPECT_EQ(layout->catalog.tensors.size(), 2u);
}

TEST(ModelLayout, SeparatesChunksOfATensor) {
  States states(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (std::int64_t stripe = 0; stripe < 3; ++stripe) {
      states.add_rows(rank, "striped", 2 * stripe + static_cast<std::int64_t>(rank), 1, 6);
    }
    states.add_rows(rank, "plain", static_cast<std::int64_t>(rank), 1, 2);
  }
  const auto layout = lay_out_model(states.plan(), {{}, true, false}, ticket());
  ASSERT_TRUE(layout) << layout.error().what();
  Names all;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const SaveAssignment& assignment = layout->assignments[rank];
    ASSERT_EQ(assignment.files.size(), 3u);
    EXPECT_EQ(assignment.files[0].name, "shard-0000" + std::to_string(rank + 1) + "-model-00001-of-00001.safetensors");
    EXPECT_EQ(assignment.files[0].item_count, 2u) << "the first stripe, and the plain tensor";
    EXPECT_EQ(assignment.items.size(), 4u);
    EXPECT_EQ(assignment.file_count, 6u);
    const Names names = names_of(assignment);
    all.insert(all.end(), names.begin(), names.end());
  }
  EXPECT_EQ(all[1], "shard-00003-model-00001-of-00001.safetensors") << "the numbers after those of the ranks";
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end()) << "each name once";
  EXPECT_EQ(layout->catalog.files.size(), 6u);
}

TEST(ModelLayout, TwoSavesShareNoName) {
  States states(1);
  states.add_whole(0, "a");
  const auto fresh = lay_out_model(states.plan(), {}, ticket());
  const auto later = lay_out_model(states.plan(), {}, ticket(false));
  ASSERT_TRUE(fresh && later);
  EXPECT_EQ(fresh->catalog.files, Names{"model-00001-of-00001.safetensors"});
  EXPECT_NE(later->catalog.files, fresh->catalog.files);
}

TEST(ModelLayout, SpreadsWholeFilesEvenly) {
  States states(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (const char* key : {"a", "b", "c"}) states.add_whole(rank, key, 8);
  }
  states.add_whole(0, "of the first", 1);
  const SafetensorsForm form{{{"a", 1}, {"b", 2}, {"c", 3}, {"of the first", 3}}, false, false};
  save_plan::PlannedSave planned = states.plan();
  ASSERT_TRUE(assign_whole_files(planned, form));
  const auto layout = lay_out_model(planned, form, ticket());
  ASSERT_TRUE(layout);
  EXPECT_EQ(names_of(layout->assignments[0]),
            (Names{"model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"}));
  EXPECT_EQ(names_of(layout->assignments[1]), Names{"model-00002-of-00003.safetensors"});
  const commit::ModelContent content = content_of(layout->catalog);
  EXPECT_EQ(content.files.size(), 3u);
  EXPECT_EQ(content.index.files.size(), 4u);
  EXPECT_EQ(content.tensor_bytes, 3 * 8 * 16 + 16u);
}

TEST(ModelLayout, RefusesFilesNoRankHoldsWhole) {
  States states(2);
  states.add_whole(0, "whole");
  for (std::size_t rank = 0; rank < 2; ++rank) {
    states.add_rows(rank, "cut", static_cast<std::int64_t>(rank), 1, 2);
  }
  save_plan::PlannedSave planned = states.plan();
  const auto assigned = assign_whole_files(planned, {});
  ASSERT_FALSE(assigned);
  EXPECT_EQ(assigned.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(assigned.error().key(), "cut");
}

TEST(ModelLayout, RefusesStatesNoModelCanHold) {
  States states(1);
  states.add_whole(0, "a");
  EXPECT_TRUE(check_model_state(states.state(0).entries(), {}));
  const auto unnumbered = check_model_state(states.state(0).entries(), {{{"b", 1}}, false, false});
  ASSERT_FALSE(unnumbered);
  EXPECT_EQ(unnumbered.error().key(), "a");
  const auto zero = check_model_state(states.state(0).entries(), {{{"a", 0}}, false, false});
  ASSERT_FALSE(zero);
  EXPECT_EQ(zero.error().code(), ErrorCode::kInvalidArgument);

  StateDict value;
  ASSERT_TRUE(value.add_value("lr", Value(0.5)));
  const auto refused = check_model_state(value.entries(), {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error().key(), "lr");

  StateDict complex;
  std::vector<std::byte> memory(16);
  ASSERT_TRUE(complex.add_tensor("c", TensorView::contiguous(memory.data(), DType::kComplex32, {4})));
  const auto unsupported = check_model_state(complex.entries(), {});
  ASSERT_FALSE(unsupported);
  EXPECT_EQ(unsupported.error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(unsupported.error().key(), "c");
}

}  // namespace
}  // namespace cairn::checkpointer
