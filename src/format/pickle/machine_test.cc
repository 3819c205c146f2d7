#include "format/pickle/machine.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "format/pickle/writer.h"

namespace cairn::pickle {
namespace {

using namespace std::string_literals;

std::span<const std::byte> as_bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::vector<std::int64_t> integers(const Graph& graph, Node node) {
  std::vector<std::int64_t> numbers;
  for (const Node element : graph.elements(node)) numbers.push_back(graph.integer(element));
  return numbers;
}

void expect_error(const std::string& pickle, ErrorCode code, std::uint64_t offset) {
  const auto graph = parse(as_bytes(pickle));
  ASSERT_FALSE(graph.has_value());
  EXPECT_EQ(graph.error().code(), code) << graph.error().what();
  EXPECT_EQ(graph.error().offset(), offset) << graph.error().what();
}

TEST(Machine, ReadsNumbersOfEveryLength) {
  Writer writer(4);
  const std::vector<std::int64_t> numbers = {
      0,         1,         255,       256,       65535,     65536,        -1,        -129,
      1 << 30,   INT32_MAX, INT32_MIN, 1ll << 31, 1ll << 55, -(1ll << 58), 1ll << 58, (1ll << 58) - 1,
      INT64_MAX, INT64_MIN};
  writer.mark();
  for (const std::int64_t number : numbers) writer.integer(number);
  writer.tuple_since_mark();
  writer.stop();
  const std::string pickle = std::move(writer).take();
  const auto graph = parse(as_bytes(pickle));
  ASSERT_TRUE(graph.has_value());
  EXPECT_EQ(integers(*graph, graph->root()), numbers);
}

TEST(Machine, ReadsTheTextNumbersOfProtocol1) {
  const std::string pickle = "(I01\nI00\nI-7\nI3000000000\nL9223372036854775807L\nL18446744073709551616L\nt.";
  const auto graph = parse(as_bytes(pickle));
  ASSERT_TRUE(graph.has_value()) << graph.error().what();
  std::vector<Node> parts;
  for (const Node part : graph->elements(graph->root())) parts.push_back(part);
  ASSERT_EQ(parts.size(), 6u);
  EXPECT_TRUE(graph->boolean(parts[0]));
  ASSERT_TRUE(graph->is(parts[1], Kind::kBool));
  EXPECT_FALSE(graph->boolean(parts[1]));
  EXPECT_EQ(graph->integer(parts[2]), -7);
  EXPECT_EQ(graph->integer(parts[3]), 3000000000);
  EXPECT_EQ(graph->integer(parts[4]), INT64_MAX);
  ASSERT_TRUE(graph->is(parts[5], Kind::kBigInteger));
  const std::span<const std::byte> big = graph->bytes(parts[5]);
  ASSERT_EQ(big.size(), 9u);
  EXPECT_EQ(big[8], std::byte{1});
  EXPECT_EQ(big[0], std::byte{0});
}

TEST(Machine, RefusesNonDecimalText) {
  for (const char* text : {"I\n.", "Ix\n.", "L12\x01\n.", "I1.5\n."}) {
    EXPECT_EQ(parse(as_bytes(text)).error().code(), ErrorCode::kCorrupt) << text;
  }
  EXPECT_EQ(parse(as_bytes(std::string("I12."))).error().code(), ErrorCode::kCorrupt);  // no end of the line
}

TEST(Machine, StopsAtStopAndSaysWhere) {
  const std::string pickle = "\x80\x02K\x05.what follows"s;
  const auto graph = parse(as_bytes(pickle));
  ASSERT_TRUE(graph.has_value());
  EXPECT_EQ(graph->bytes_consumed(), 5u);
  EXPECT_EQ(graph->integer(graph->root()), 5);
}

TEST(Machine, KeepsTheOrderOfAppends) {
  const std::string pickle = "]K\x01"s + "a(K\x02K\x03" + "e(eK\x04" + "a.";
  const auto graph = parse(as_bytes(pickle));
  ASSERT_TRUE(graph.has_value());
  EXPECT_EQ(integers(*graph, graph->root()), (std::vector<std::int64_t>{1, 2, 3, 4}));
}

TEST(Machine, MakesInertNodesOfAllCalls) {
  const std::string pickle = "cos\nsystem\n(X\x04\x00\x00\x00true"s + "tR.";
  const auto graph = parse(as_bytes(pickle));
  ASSERT_TRUE(graph.has_value());
  EXPECT_TRUE(graph->makes(graph->root(), "os", "system"));
  EXPECT_EQ(graph->text(graph->elements(graph->arguments(graph->root())).front()), "true");
}

TEST(Machine, ReadsAShapeFromTorchSize) {
  for (const std::string& idiom : {"\x94\x85\x94R\x94"s, "\x85R"s, "\x94\x85R"s}) {
    const std::string pickle =
        "\x80\x04"
        "ctorch\nSize\nK\x02K\x03\x86"s +
        idiom + ".padding that makes room for a wide load";
    const auto graph = parse(as_bytes(pickle));
    ASSERT_TRUE(graph.has_value());
    const Node shape = graph->root();
    ASSERT_TRUE(graph->makes(shape, "torch", "Size"));
    const Elements arguments = graph->elements(graph->arguments(shape));
    ASSERT_EQ(arguments.size(), 1u);
    EXPECT_EQ(integers(*graph, arguments.front()), (std::vector<std::int64_t>{2, 3}));
    ASSERT_TRUE(graph->shape(shape).has_value());
    EXPECT_EQ(graph->shape(shape)->size(), 2u);
  }
}

TEST(Machine, ANameMayHoldAZeroByte) {
  const std::string pickle = "cm\0x\nn\0\n."s;
  const auto graph = parse(as_bytes(pickle));
  ASSERT_TRUE(graph.has_value());
  EXPECT_TRUE(graph->is_global(graph->root(), "m\0x"s, "n\0"s));
}

TEST(Machine, AListMayContainItself) {
  const std::string pickle =
      "]\x94h\x00"
      "a."s;
  const auto graph = parse(as_bytes(pickle));
  ASSERT_TRUE(graph.has_value());
  EXPECT_EQ(graph->elements(graph->root()).front(), graph->root());
}

TEST(Machine, FillsOrderedDictsAndInstances) {
  const std::string ordered = "ccollections\nOrderedDict\n)RX\x01\x00\x00\x00kK\x01s."s;
  const auto dict = parse(as_bytes(ordered));
  ASSERT_TRUE(dict.has_value());
  EXPECT_EQ(dict->elements(dict->items(dict->root())).size(), 2u);
  EXPECT_FALSE(dict->state(dict->root()).is_set());

  const std::string plain = "cm\nC\n)\x81}b."s;
  const auto instance = parse(as_bytes(plain));
  ASSERT_TRUE(instance.has_value());
  EXPECT_EQ(instance->kind(instance->root()), Kind::kInstance);
  EXPECT_TRUE(instance->state(instance->root()).is_set());
}

TEST(Machine, RefusesOpcodesNotForData) {
  expect_error("\x80\x02\x82\x01."s, ErrorCode::kUnsupported, 2);  // EXT1
  expect_error("(ios\nsystem\n."s, ErrorCode::kUnsupported, 1);    // INST
  expect_error("Pid\n."s, ErrorCode::kUnsupported, 0);             // PERSID
  expect_error("\x80\x05\x97."s, ErrorCode::kUnsupported, 2);      // NEXT_BUFFER
  expect_error("\x80\x06."s, ErrorCode::kUnsupported, 0);
  expect_error("\x80\x02\x01."s, ErrorCode::kCorrupt, 2);
}

TEST(Machine, RefusesLengthsBeyondTheEnd) {
  expect_error(
      "X\xff\xff\xff\x7f"
      "abc."s,
      ErrorCode::kCorrupt, 0);
  expect_error(
      "\x8e\xff\xff\xff\xff\xff\xff\xff\xff"
      "abc."s,
      ErrorCode::kCorrupt, 0);
  expect_error("K"s, ErrorCode::kCorrupt, 0);
  expect_error("N"s, ErrorCode::kCorrupt, 1);
  expect_error(""s, ErrorCode::kCorrupt, 0);
  expect_error("cos\nsystem"s, ErrorCode::kCorrupt, 0);
}

TEST(Machine, RefusesAnUnsetMemoNumber) {
  expect_error("j\xff\xff\xff\x7f."s, ErrorCode::kCorrupt, 0);
  expect_error("Nq\x01h\x02."s, ErrorCode::kCorrupt, 3);
}

TEST(Machine, RefusesOpcodesLackingOperands) {
  for (const char* pickle :
       {".",     "a.",    "Na.",    "R.",   "NR.",       "b.",   "t.",    "1.", "0.", "2.", "(.",    "NN.",  "(K\1.",
        "\x85.", "\x94.", "N)R)).", "NNb.", "]N(N\x93.", "NNs.", "NNNs.", "Q.", "e.", "u.", "}(Nu.", "\x90."}) {
    SCOPED_TRACE(pickle);
    const std::string text = pickle;
    EXPECT_FALSE(parse(as_bytes(text)).has_value());
  }
}

TEST(Machine, DepthOfTheInputCostsNoStack) {
  const std::string pickle = std::string(200'000, ']') + std::string(199'999, 'a') + ".";
  EXPECT_TRUE(parse(as_bytes(pickle)).has_value());
}

TEST(Machine, KeepsToItsMemoryLimit) {
  const std::string pickle = std::string(100'000, '}') + ".";
  Limits limits;
  limits.memory_bytes_max = 100'000;
  const auto graph = parse(as_bytes(pickle), limits);
  ASSERT_FALSE(graph.has_value());
  EXPECT_EQ(graph.error().code(), ErrorCode::kUnsupported);
}

// Folds instances of m.C to the integer in the first value of the instance's state.
class FirstNumber final : public FoldHandler {
 public:
  std::optional<std::uint64_t> fold(const Graph& graph, Node instance) override {
    if (!graph.makes(instance, "m", "C")) return std::nullopt;
    ++calls;
    auto element = graph.elements(graph.state(instance)).begin();
    return static_cast<std::uint64_t>(graph.integer(*++element));
  }
  bool is_determined_by(std::uint64_t folded, std::span<const Filling> fillings) const override {
    return fillings.size() == 1 && !fillings[0].is_text && static_cast<std::uint64_t>(fillings[0].number) == folded;
  }
  std::optional<std::uint64_t> fold_like(std::uint64_t, std::span<const Filling> fillings) override {
    ++calls_like;
    return static_cast<std::uint64_t>(fillings[0].number);
  }
  int calls = 0;
  int calls_like = 0;
};

TEST(FoldHandler, ReplacesFinishedInstances) {
  for (const std::string& open : {")\x81}("s, ")\x81\x94}\x94("s}) {
    const auto object = [&](char number) { return "cm\nC\n" + open + "X\x01\x00\x00\x00kK"s + number + "ub"; };
    const std::string pickle = "](" + object(7) + object(9) + "e.padding";
    FirstNumber fold_handler;
    const auto graph = parse(as_bytes(pickle), {}, &fold_handler);
    ASSERT_TRUE(graph.has_value());
    EXPECT_EQ(fold_handler.calls, 2);
    std::vector<std::uint64_t> folded;
    for (const Node element : graph->elements(graph->root())) {
      ASSERT_EQ(graph->kind(element), Kind::kFolded);
      folded.push_back(graph->folded(element));
    }
    EXPECT_EQ(folded, (std::vector<std::uint64_t>{7, 9}));
  }
}

// Objects m.C whose state has the key "k". The pickle refers to class and key by number: entry 0 is the class, entry 1
// the key.
std::string alike(const std::vector<std::string>& numbers) {
  std::string pickle =
      "cm\nC\n\x94"
      "0X\x01\x00\x00\x00k\x94"
      "0]("s;
  for (const std::string& number : numbers) pickle.append("h\x00)\x81\x94}\x94(h\x01"s).append(number).append("ub");
  return pickle + "e.padding that makes room for wide loads"s;
}

TEST(FoldHandler, FoldsAlikeObjectsWithoutGraph) {
  const std::string pickle =
      alike({"K\x01", "K\x02", "M\x00\x03"s, "J\x00\x00\x00\x04"s, "\x8a\x05\x00\x00\x00\x00\x05"s});
  FirstNumber fold_handler;
  const auto graph = parse(as_bytes(pickle), {}, &fold_handler);
  ASSERT_TRUE(graph.has_value());
  std::vector<std::uint64_t> folded;
  for (const Node element : graph->elements(graph->root())) folded.push_back(graph->folded(element));
  EXPECT_EQ(folded, (std::vector<std::uint64_t>{1, 2, 0x300, 0x4000000, 0x500000000}));
  EXPECT_EQ(fold_handler.calls, 1);
  EXPECT_EQ(fold_handler.calls_like, 4);
}

TEST(FoldHandler, SkipsAlikeObjectsReferredTo) {
  // Entries 2 and 3 are the first object and its state, 4 and 5 the second object and its state.
  for (const char entry : {'\x02', '\x03', '\x04', '\x05', '\x06', '\x07'}) {
    SCOPED_TRACE(static_cast<int>(entry));
    std::string pickle = alike({"K\x01", "K\x02", "K\x03"});
    pickle.replace(pickle.find("e.padding"), 1, "h"s + entry + "e");
    FirstNumber fold_handler;
    const auto graph = parse(as_bytes(pickle), {}, &fold_handler);
    ASSERT_TRUE(graph.has_value());
    std::vector<Node> elements;
    for (const Node element : graph->elements(graph->root())) elements.push_back(element);
    ASSERT_EQ(elements.size(), 4u);
    const std::size_t whole = static_cast<std::size_t>(entry - 2) / 2;
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(graph->kind(elements[i]) == Kind::kInstance, i == whole) << i;
    EXPECT_EQ(elements[3], entry % 2 == 0 ? elements[whole] : graph->state(elements[whole]));
  }
}

TEST(FoldHandler, RefusesATruncatedAlikeObject) {
  const std::string pickle = alike({"K\x01", "K\x02", "K\x03"});
  const std::size_t end = pickle.find("e.padding");
  for (std::size_t size = 0; size <= end + 1; ++size) {
    FirstNumber fold_handler;
    EXPECT_FALSE(parse(as_bytes(pickle).first(size), {}, &fold_handler).has_value()) << size;
  }
}

TEST(FoldHandler, SkipsInstancesReferredTo) {
  const std::string by_memo =
      "](cm\nC\n)\x81\x94}\x94(X\x01\x00\x00\x00kK\x07ubh\x00"
      "e.padding"s;
  const std::string by_duplicate =
      "](cm\nC\n)\x81"
      "2}(X\x01\x00\x00\x00kK\x07ube.padding"s;
  for (const std::string& pickle : {by_memo, by_duplicate}) {
    FirstNumber fold_handler;
    const auto graph = parse(as_bytes(pickle), {}, &fold_handler);
    ASSERT_TRUE(graph.has_value());
    EXPECT_EQ(fold_handler.calls, 0);
    const Elements elements = graph->elements(graph->root());
    ASSERT_EQ(elements.size(), 2u);
    EXPECT_EQ(elements.front(), *++elements.begin());
    EXPECT_EQ(graph->kind(elements.front()), Kind::kInstance);
  }
}

// The state's list is put into an older list before the instance is finished: a fold would leave the older list with a
// dangling element.
TEST(FoldHandler, SkipsInstancesOfSharedParts) {
  const std::string pickle =
      "]\x94(cm\nC\n)\x81}(X\x01\x00\x00\x00kK\x07X\x01\x00\x00\x00lh\x00(K\x01K\x02\x86"
      "eubK\x05"
      "e.padding"s;
  FirstNumber fold_handler;
  const auto graph = parse(as_bytes(pickle), {}, &fold_handler);
  ASSERT_TRUE(graph.has_value());
  EXPECT_EQ(fold_handler.calls, 0);
  const Elements elements = graph->elements(graph->root());
  ASSERT_EQ(elements.size(), 3u);
  EXPECT_EQ(integers(*graph, elements.front()), (std::vector<std::int64_t>{1, 2}));
}

}  // namespace
}  // namespace cairn::pickle
