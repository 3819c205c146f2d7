#include "format/dcp/planner_data.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "format/pickle/machine.h"
#include "format/pickle/writer.h"

namespace cairn::dcp {
namespace {

using pickle::Writer;
using Part = std::function<void(Writer&)>;
using Maybe = std::optional<FlatMapping>;

Result<Maybe> read(const Part& part, std::uint64_t budget_bytes = 1000) {
  Writer writer(4);
  part(writer);
  writer.stop();
  const std::string bytes = std::move(writer).take();
  CAIRN_TRY_ASSIGN(const pickle::Graph graph, pickle::parse(std::as_bytes(std::span(bytes))));
  ByteBudget budget(budget_bytes);
  return read_flat_mapping(graph, graph.root(), budget);
}

// Adds `key` with the place ("layers", number) to the dict on top.
void add(Writer& w, const std::string& key, std::int64_t number) {
  w.text(key);
  w.text("layers");
  w.integer(number);
  w.tuple(2);
  w.set_item();
}

// The attribute `maps` of a ChainMap, whose maps are made by `maps`.
Part chain_map(const Part& maps) {
  return [maps](Writer& w) {
    w.global("collections", "ChainMap");
    w.empty_tuple();
    w.new_instance();
    w.empty_dict();
    w.text("maps");
    w.empty_list();
    w.mark();
    maps(w);
    w.appends();
    w.set_item();
    w.build();
  };
}

const Path kFirst = {"layers", std::int64_t{1}};
const Path kSecond = {"layers", std::int64_t{2}};

TEST(FlatMapping, IsReadFromADictInItsOrder) {
  const auto mapping = read([](Writer& w) {
    w.empty_dict();
    add(w, "b", 2);
    add(w, "a", 1);
    w.text("c");
    w.empty_list();
    w.set_item();
  });
  ASSERT_TRUE(mapping && *mapping);
  EXPECT_EQ(**mapping, (FlatMapping{{"b", kSecond}, {"a", kFirst}, {"c", {}}}));
}

TEST(FlatMapping, ChainMapYieldsTheFirstEntry) {
  const auto mapping = read(chain_map([](Writer& w) {
    w.empty_dict();
    add(w, "a", 1);
    w.empty_dict();
    add(w, "a", 2);
    add(w, "b", 2);
  }));
  ASSERT_TRUE(mapping && *mapping);
  EXPECT_EQ(**mapping, (FlatMapping{{"a", kFirst}, {"b", kSecond}}));
}

// A dict of a pickle may set a key twice. Python keeps the key's place and the last value.
TEST(FlatMapping, KeySetTwiceHasTheLastPath) {
  const Part dict = [](Writer& w) {
    w.empty_dict();
    add(w, "a", 1);
    add(w, "b", 1);
    add(w, "a", 2);
  };
  const FlatMapping expected = {{"a", kSecond}, {"b", kFirst}};
  EXPECT_EQ(read(dict).value(), Maybe(expected));
  EXPECT_EQ(read(chain_map([&](Writer& w) {
              dict(w);
              w.empty_dict();
              add(w, "a", 1);
            })).value(),
            Maybe(expected));
}

TEST(FlatMapping, IsNoneOfAnyOtherObject) {
  const std::vector<Part> others = {
      [](Writer& w) { w.text("a planner's own"); },
      [](Writer& w) {  // a key that is no text
        w.empty_dict();
        w.integer(1);
        w.empty_tuple();
        w.set_item();
      },
      [](Writer& w) {  // a path that is no sequence
        w.empty_dict();
        w.text("a");
        w.text("a");
        w.set_item();
      },
      [](Writer& w) {  // a path with an element that is neither text nor integer
        w.empty_dict();
        w.text("a");
        w.real(0.5);
        w.tuple(1);
        w.set_item();
      },
      chain_map([](Writer& w) { w.text("no map"); }),
  };
  for (std::size_t i = 0; i < others.size(); ++i) {
    const auto mapping = read(others[i]);
    ASSERT_TRUE(mapping) << i << mapping.error().what();
    EXPECT_FALSE(*mapping) << i;
  }
}

TEST(FlatMapping, ReadsARepeatedMapOnce) {
  const auto mapping = read(chain_map([](Writer& w) {
    w.empty_dict();
    for (int i = 0; i < 2'000; ++i) add(w, std::to_string(i), i);
    const std::uint32_t memo = w.memoize();
    for (int i = 0; i < 100'000; ++i) w.reference(memo);
  }));
  ASSERT_TRUE(mapping) << mapping.error().what();
  EXPECT_EQ((*mapping)->size(), 2'000u);
}

TEST(FlatMapping, RepeatedPathsExceedTheBudget) {
  const auto mapping = read([](Writer& w) {
    w.empty_dict();
    w.text("a");
    w.mark();
    for (int i = 0; i < 1'000; ++i) w.integer(i);
    w.tuple_since_mark();
    const std::uint32_t memo = w.memoize();
    w.set_item();
    for (int i = 0; i < 1'000; ++i) {
      w.text(std::to_string(i));
      w.reference(memo);
      w.set_item();
    }
  });
  ASSERT_FALSE(mapping);
  EXPECT_EQ(mapping.error().code(), ErrorCode::kUnsafe);
}

}  // namespace
}  // namespace cairn::dcp
