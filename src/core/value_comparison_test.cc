#include "core/value_comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

namespace cairn {
namespace {

Value list(std::vector<Value> items) { return List{std::move(items)}; }
Value dict(std::vector<std::pair<Value, Value>> items, bool ordered = false) { return Dict{std::move(items), ordered}; }

Value array(std::vector<float> elements) {
  const auto bytes = std::as_bytes(std::span(elements));
  return Array{Array::Kind::kNumpyArray,
               DType::kFloat32,
               {static_cast<std::int64_t>(elements.size())},
               std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
}

TEST(ValueComparison, EqualValuesOfEveryType) {
  const Value same[] = {None{},
                        true,
                        3,
                        2.5,
                        "text",
                        Bytes{"b"},
                        std::nan(""),
                        list({1, "a"}),
                        Complex{1, -0.0},
                        Tuple{{1, list({2})}},
                        dict({{"a", 1}, {2, None{}}}),
                        array({1, NAN})};
  for (const Value& value : same) EXPECT_FALSE(first_difference(value, Value(value))) << to_string(value);
}

TEST(ValueComparison, EqualNumbersOfUnequalTypes) {
  EXPECT_TRUE(first_difference(1, true));
  EXPECT_TRUE(first_difference(1, 1.0));
  EXPECT_TRUE(first_difference(list({1}), Tuple{{1}}));
  EXPECT_TRUE(first_difference(dict({}), dict({}, true)));
  EXPECT_TRUE(first_difference(0.0, -0.0));
}

TEST(ValueComparison, ThePlaceOfTheDifference) {
  const Value a = dict({{"groups", list({dict({{"lr", 0.1}, {"betas", Tuple{{0.9, 0.99}}}})})}});
  const Value b = dict({{"groups", list({dict({{"lr", 0.1}, {"betas", Tuple{{0.9, 0.999}}}})})}});
  const auto difference = first_difference(a, b);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->place, "['groups'][0]['betas'][1]");
  EXPECT_EQ(difference->a, "0.99");
  EXPECT_EQ(difference->b, "0.999");
}

TEST(ValueComparison, APartThatOneSideLacks) {
  const auto longer = first_difference(list({1}), list({1, 2}));
  EXPECT_EQ(longer->place, "[1]");
  EXPECT_EQ(longer->a, "");
  EXPECT_EQ(longer->b, "2");
  const auto key = first_difference(dict({{"x", 1}, {"y", 2}}), dict({{"x", 1}}));
  EXPECT_EQ(key->place, "['y']");
  EXPECT_EQ(key->a, "2");
  EXPECT_EQ(key->b, "");
  EXPECT_EQ(first_difference(Set{{1, 2}}, Set{{1, 3}})->a, "2");
}

TEST(ValueComparison, OrderCountsInOrderedDicts) {
  const std::pair<Value, Value> x{"x", 1};
  const std::pair<Value, Value> y{"y", 2};
  EXPECT_FALSE(first_difference(dict({x, y}), dict({y, x})));
  EXPECT_TRUE(first_difference(dict({x, y}, true), dict({y, x}, true)));
  EXPECT_FALSE(first_difference(Set{{1, "a"}}, Set{{"a", 1}}));
}

TEST(ValueComparison, ToleranceOfFloatsAlone) {
  EXPECT_TRUE(first_difference(1.0, 1.0001));
  EXPECT_FALSE(first_difference(1.0, 1.0001, 0.001));
  EXPECT_FALSE(first_difference(array({1, 2}), array({1, 2.0001F}), 0.001));
  EXPECT_TRUE(first_difference(array({1, 2}), array({1, 2.0001F})));
  EXPECT_TRUE(first_difference(1, 2, 10));  // integers have no tolerance
}

TEST(ValueComparison, ObjectsByTheirContent) {
  const auto object = [](const char* name, int state) {
    return Value(std::make_unique<Object>(Object{"module", name, Tuple{{}}, state, None{}}));
  };
  EXPECT_FALSE(first_difference(object("A", 1), object("A", 1)));
  EXPECT_EQ(first_difference(object("A", 1), object("A", 2))->place, " state");
  EXPECT_TRUE(first_difference(object("A", 1), object("B", 1)));
}

TEST(ValueComparison, ASharedArrayEqualsItsArray) {
  Array array;
  array.kind = Array::Kind::kTensor;
  array.dtype = DType::kUInt8;
  array.shape = {3};
  array.data = "abc";
  const Value alone(array);
  const SharedArray shared = std::make_shared<const Array>(array);
  array.data = "abd";
  const Value pair_a = List{{Value(shared), Value(shared)}};
  const Value pair_b = List{{Value(shared), Value(std::make_shared<const Array>(array))}};
  EXPECT_EQ(Value(shared), alone);
  EXPECT_FALSE(first_difference(Value(shared), alone));
  EXPECT_FALSE(first_difference(pair_a, pair_a));
  ASSERT_TRUE(first_difference(pair_a, pair_b));
  EXPECT_EQ(first_difference(pair_a, pair_b)->place, "[1]");
}

}  // namespace
}  // namespace cairn
