// Values to pickles and back, and Python's pickles as values.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "format/pickle/machine.h"
#include "format/pickle/value_reader.h"
#include "format/pickle/value_writer.h"

namespace cairn::pickle {
namespace {

using namespace std::string_literals;

Result<Value> read(const std::string& pickle, Resolver* resolver = nullptr) {
  CAIRN_TRY_ASSIGN(const Graph graph, parse(std::as_bytes(std::span(pickle))));
  ByteBudget budget(pickle.size());
  return to_value(graph, graph.root(), budget, resolver);
}

std::string write(const Value& value, int protocol) {
  Writer writer(protocol);
  write_value(writer, value).value();
  writer.stop();
  return std::move(writer).take();
}

Value object(std::string module, std::string name, Value arguments) {
  auto made = std::make_unique<Object>();
  made->module = std::move(module);
  made->name = std::move(name);
  made->arguments = std::move(arguments);
  return made;
}

template <typename Sequence, typename... Items>
Sequence make(Items&&... items) {
  Sequence sequence;
  (sequence.items.emplace_back(std::forward<Items>(items)), ...);
  return sequence;
}

std::vector<Value> examples() {
  std::vector<Value> values;
  values.emplace_back();
  values.emplace_back(true);
  for (const std::int64_t number :
       {std::int64_t{0}, std::int64_t{-1}, std::int64_t{127}, std::int64_t{128}, std::int64_t{-128},
        std::int64_t{-32769}, std::int64_t{1} << 40, std::numeric_limits<std::int64_t>::min(),
        std::numeric_limits<std::int64_t>::max()}) {
    values.emplace_back(number);
  }
  values.emplace_back(BigInt{"\0\0\0\0\0\0\0\0\x01"s});
  values.emplace_back(BigInt{std::string(300, 'x')});
  values.emplace_back(-0.5);
  values.emplace_back(std::numeric_limits<double>::infinity());
  values.emplace_back("");
  values.emplace_back(std::string(300, 'a') + "\xc3\xbc");
  values.emplace_back(Bytes{});
  values.emplace_back(Bytes{"\x00\x7f\x80\xff"s});
  values.emplace_back(Complex{1.5, -2});
  values.emplace_back(make<Tuple>());
  values.emplace_back(make<Tuple>(1, 2, 3, 4));
  values.emplace_back(make<Tuple>(make<Tuple>(1)));
  values.emplace_back(make<List>(1, "two", make<List>()));
  values.emplace_back(make<Set>(1, "two"));
  values.emplace_back(make<Set>());
  for (const bool ordered : {false, true}) {
    Dict dict;
    dict.ordered = ordered;
    values.emplace_back(dict);
    dict.items.emplace_back("k", 1);
    dict.items.emplace_back(make<Tuple>(1, 2), make<List>(None{}));
    values.emplace_back(dict);
  }
  values.emplace_back(Array{Array::Kind::kNumpyArray, DType::kInt16, {2, 3}, std::string(12, '\xee')});
  values.emplace_back(Array{Array::Kind::kNumpyArray, DType::kComplex128, {0}, ""});
  values.emplace_back(Array{Array::Kind::kNumpyScalar, DType::kBool, {}, "\x01"});
  values.push_back(object("torch", "float32", None{}));
  values.push_back(object("torch", "Size", make<Tuple>(make<Tuple>(1, 2))));
  values.push_back(object("builtins", "frozenset", make<Tuple>(make<List>(1))));
  auto full = std::make_unique<Object>();
  full->module = "m";
  full->name = "C.Inner";
  full->by_new = true;
  full->arguments = make<Tuple>();
  full->items = make<List>(1, 2);
  full->state = Dict();
  values.emplace_back(std::move(full));
  return values;
}

TEST(Value, IsReadBackAsWritten) {
  for (const int protocol : {2, 4}) {
    for (const Value& value : examples()) {
      SCOPED_TRACE(to_string(value) + " in protocol " + std::to_string(protocol));
      const auto back = read(write(value, protocol));
      ASSERT_TRUE(back.has_value()) << back.error().what();
      EXPECT_EQ(*back, value);
    }
  }
}

TEST(Value, WritesTheBytesOfPython) {
  EXPECT_EQ(write(make<List>(1, -1, std::int64_t{1} << 31, "a"), 2),
            "\x80\x02](K\x01J\xff\xff\xff\xff\x8a\x05\x00\x00\x00\x80\x00X\x01\x00\x00\x00"
            "ae."s);
  EXPECT_EQ(write(Bytes{"\xff"}, 2),
            "\x80\x02"
            "c_codecs\nencode\nq\x00X\x02\x00\x00\x00\xc3\xbfX\x06\x00\x00\x00latin1q\x01\x86R."s);
  EXPECT_EQ(write(1.0, 2), "\x80\x02G\x3f\xf0\x00\x00\x00\x00\x00\x00."s);
}

TEST(Value, HasTheNamesOfPython3) {
  for (const auto& [old_name, name] : {std::pair("xrange", "range"), {"long", "int"}, {"unicode", "str"}}) {
    const auto value = read("\x80\x02"s + "c__builtin__\n" + old_name + "\n.");
    ASSERT_TRUE(value.has_value());
    EXPECT_EQ(value->object()->qualified_name(), "builtins."s + name);
  }
  EXPECT_EQ(read("\x80\x02"s + "cbuiltins\nlong\n.").value().object()->name, "long");
}

TEST(Value, ReadsColumnMajorArraysRowByRow) {
  // numpy.asfortranarray([[1, 2, 3], [4, 5, 6]], dtype=int8), protocol 4
  const std::string pickle =
      "\x80\x04"
      "cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85"
      "C\x01"
      "b\x87R(K\x01K\x02K\x03\x86"
      "cnumpy\ndtype\nX\x02\x00\x00\x00i1\x89\x88\x87R(K\x03X\x01\x00\x00\x00|"
      "NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
      "\x88"
      "C\x06\x01\x04\x02\x05\x03\x06tb."s;
  const auto value = read(pickle);
  ASSERT_TRUE(value.has_value()) << value.error().what();
  const auto* array = value->get_if<Array>();
  ASSERT_NE(array, nullptr);
  EXPECT_EQ(array->shape, (Extents{2, 3}));
  EXPECT_EQ(array->data, "\1\2\3\4\5\6");
}

TEST(Value, ArrayLackingBytesIsAnObject) {
  const Value array = Array{Array::Kind::kNumpyArray, DType::kInt8, {3}, "abc"};
  std::string pickle = write(array, 4);
  const std::size_t shape = pickle.find("(K\x01(K\x03t");
  ASSERT_NE(shape, std::string::npos);
  pickle[shape + 5] = 4;
  const auto value = read(pickle);
  ASSERT_TRUE(value.has_value()) << value.error().what();
  ASSERT_NE(value->object(), nullptr);
  EXPECT_EQ(value->object()->name, "_reconstruct");
}

TEST(Value, RefusesACyclicValue) {
  const auto value = read(
      "]\x94h\x00"
      "a."s);
  ASSERT_FALSE(value.has_value());
  EXPECT_EQ(value.error().code(), ErrorCode::kUnsupported);
}

TEST(Value, ReportsSharedObjects) {
  // ([1], the first list again, ([1],))
  const std::string pickle =
      "\x80\x02(]K\x01"
      "aq\x00h\x00]K\x01"
      "a\x85t."s;
  const Value value = read(pickle).value();
  const auto& items = value.get_if<Tuple>()->items;
  ASSERT_EQ(items.size(), 3);
  const Value& other = items[2].get_if<Tuple>()->items[0];
  EXPECT_EQ(items[0], other);
  EXPECT_NE(items[0].identity(), 0);
  EXPECT_EQ(items[0].identity(), items[1].identity());
  EXPECT_NE(items[0].identity(), other.identity());
  EXPECT_EQ(Value(items[0]).identity(), items[0].identity()) << "a copy";
  EXPECT_EQ(items[0].get_if<List>()->items[0].identity(), 0) << "a number";
}

TEST(Value, RefusesUnboundedSharing) {
  std::string pickle = "]\x94"s;
  for (char level = 0; level < 40; ++level) pickle += "0](h"s + level + "h" + level + "e\x94";
  const auto value = read(pickle + ".");
  ASSERT_FALSE(value.has_value());
  EXPECT_EQ(value.error().code(), ErrorCode::kUnsafe);
}

TEST(Value, ReachesExactlyTheMaximumDepth) {
  const auto nested = [](std::size_t depth) { return std::string(depth + 1, ']') + std::string(depth, 'a') + "."; };
  EXPECT_TRUE(read(nested(kValueDepthMax)).has_value());
  EXPECT_FALSE(read(nested(kValueDepthMax + 1)).has_value());
}

TEST(Value, TranslatesNamesOfProtocolTwo) {
  const auto value = read("c__builtin__\nxrange\n(K\x01tR."s);
  ASSERT_TRUE(value.has_value());
  ASSERT_NE(value->object(), nullptr);
  EXPECT_EQ(value->object()->qualified_name(), "builtins.range");
}

TEST(Value, APersistentIdNeedsAResolver) {
  class Fixed final : public Resolver {
   public:
    Result<std::optional<Value>> resolve(const Graph& graph, Node node, ByteBudget&) override {
      if (!graph.is(node, Kind::kPersistent)) return std::optional<Value>();
      return std::optional<Value>(Value("resolved " + std::string(graph.text(graph.persistent_id(node)))));
    }
  };
  const std::string pickle = "](X\x02\x00\x00\x00idQe."s;
  EXPECT_FALSE(read(pickle).has_value());
  Fixed resolver;
  const auto value = read(pickle, &resolver);
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(*value, Value(make<List>("resolved id")));
}

TEST(Value, LineFeedsSmuggleNoOpcodes) {
  Tuple both;
  both.items.push_back(object("a\nb", "c", None{}));
  both.items.push_back(object("a", "b\nc", None{}));
  both.items.push_back(object("a", "5\nb", None{}));
  const Value value = both;
  const auto back = read(write(value, 4));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(*back, value);
  Writer writer(2);
  EXPECT_FALSE(write_value(writer, value).has_value());
}

TEST(Value, ATensorNeedsAPlaceForItsBytes) {
  Writer writer(2);
  EXPECT_FALSE(write_value(writer, Array{Array::Kind::kTensor, DType::kInt8, {1}, "a"}).has_value());
}

}  // namespace
}  // namespace cairn::pickle
