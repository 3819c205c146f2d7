#include "save_plan/joint_layout.h"

#include <cairn/state_dict.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "save/save_items.h"

namespace cairn::save_plan {
namespace {

float elements[16];

// A value, and then a tensor with a gradient and a tensor without.
StateDict a_state() {
  StateDict state;
  const auto view = TensorView::contiguous(elements, DType::kFloat32, {2, 8});
  EXPECT_TRUE(state.add_value(Path{"value"}, Value(7)));
  EXPECT_TRUE(state.add_tensor(Path{"learned"}, view, {.requires_grad = true}));
  EXPECT_TRUE(state.add_tensor(Path{"fixed"}, view));
  return state;
}

JointLayout layout_of(bool file_per_item) {
  const StateDict state = a_state();
  const auto items = checkpointer::SaveItems::make(state);
  const std::string message = encode_local_plan(items->sources(), {.file_per_item = file_per_item}).value();
  return lay_out_together(plan_together({message}, false).value(), {}).value();
}

TEST(JointLayout, PutsTensorsBeforeValues) {
  const Catalog catalog = layout_of(false).catalog;
  ASSERT_EQ(catalog.tensors.size(), 2u);
  ASSERT_EQ(catalog.values.size(), 1u);
  const ItemLocation learned = catalog.tensors[0].locations.at(0), fixed = catalog.tensors[1].locations.at(0);
  EXPECT_GE(fixed.offset, learned.offset + learned.length);
  EXPECT_GE(catalog.values[0].location.offset, fixed.offset + fixed.length);
  EXPECT_EQ(catalog.files.size(), 1u);
}

TEST(JointLayout, NumbersAFileForEachItem) {
  const JointLayout layout = layout_of(true);
  EXPECT_EQ(layout.catalog.files.size(), 3u);
  EXPECT_EQ(layout.ranks.at(0).file_count, 3u);
  EXPECT_EQ(layout.catalog.tensors.at(0).locations.at(0).file, 0u);
  EXPECT_EQ(layout.catalog.tensors.at(1).locations.at(0).file, 1u);
  EXPECT_EQ(layout.catalog.values.at(0).location.file, 2u);
}

TEST(JointLayout, KeepsWhichTensorsAreLearned) {
  const Catalog catalog = layout_of(false).catalog;
  EXPECT_EQ(catalog.tensors.at(0).fqn, "learned");
  EXPECT_TRUE(catalog.tensors.at(0).requires_grad);
  EXPECT_FALSE(catalog.tensors.at(1).requires_grad);
}

TEST(JointPlan, RefusesAMissingRow) {
  for (const std::int64_t second : {1, 2}) {
    std::vector<std::string> messages;
    for (const std::int64_t row : {std::int64_t{0}, second}) {
      StateDict state;
      EXPECT_TRUE(state.add_chunk(Path{"rows"}, TensorView::contiguous(elements, DType::kFloat32, {1, 8}), {2, 8},
                                  {second == 2 ? 0 : row, 0}));
      const auto items = checkpointer::SaveItems::make(state);
      messages.push_back(encode_local_plan(items->sources(), {}).value());
    }
    const auto planned = plan_together(messages, false);
    EXPECT_EQ(planned.has_value(), second == 1);
  }
}

TEST(JointLayout, NamesDamagedExtraAttributes) {
  EXPECT_TRUE(extra_attributes_of("").value().empty());
  const auto extra = extra_attributes_of("no pickle");
  ASSERT_FALSE(extra);
  EXPECT_NE(std::string(extra.error().what()).find("metadata_attributes"), std::string::npos) << extra.error().what();
}

}  // namespace
}  // namespace cairn::save_plan
