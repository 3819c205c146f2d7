#include "format/dcp/metadata_decoder.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "format/dcp/metadata_template.h"
#include "format/testing/metadata_pickles.h"

namespace cairn::dcp {
namespace {

std::vector<std::uint64_t> places(const CatalogTensor& tensor) {
  std::vector<std::uint64_t> offsets;
  for (const ItemLocation& location : tensor.locations) offsets.push_back(location.length == 0 ? 0 : location.offset);
  return offsets;
}

TEST(MetadataDecoder, ReadsTheMetadataOfTorch) {
  const auto decoded = decode_metadata(as_bytes(kFromTorch));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
  expect_catalog_of_torch(decoded->catalog);
  expect_small_entries_of_torch(decoded->catalog);
  EXPECT_EQ(decoded->catalog.checkpoint_id, "/ckpt/step-1");
  EXPECT_EQ(decoded->pickle_bytes, kFromTorch.size());
  EXPECT_TRUE(decoded->catalog.extra.empty());
}

TEST(MetadataDecoder, AllowsACommitRecordBehind) {
  const std::string file = kFromTorch + "whatever";
  const auto decoded = decode_metadata(as_bytes(file));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->pickle_bytes, kFromTorch.size());
}

TEST(MetadataDecoder, RefusesAFileCutAnywhere) {
  for (std::size_t size = 0; size < kFromTorch.size(); ++size) {
    EXPECT_FALSE(decode_metadata(as_bytes(kFromTorch).first(size)).has_value()) << size;
  }
}

TEST(MetadataDecoder, AnyChangeFailsOrStaysInBounds) {
  for (std::size_t i = 0; i < kFromTorch.size(); ++i) {
    for (const char flip : {'\x01', '\x80', '\x55'}) {
      std::string damaged = kFromTorch;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      const auto decoded = decode_metadata(as_bytes(damaged));
      if (!decoded) continue;
      for (const CatalogTensor& tensor : decoded->catalog.tensors) {
        for (std::size_t c = 0; c < tensor.chunk_count(); ++c) EXPECT_TRUE(tensor.chunk(c).within(tensor.shape)) << i;
      }
    }
  }
}

TEST(MetadataDecoder, FindsItemsForAnyHint) {
  const auto none = [](Writer& w) { w.none(); };
  for (const Handmade::Part& hint :
       {Handmade::Part(none), Handmade::number(0), Handmade::number(77), Handmade::number(-1)}) {
    Handmade handmade;
    handmade.chunks = [](Writer& w) {
      for (const std::int64_t row : {3, 0, 2, 1}) Handmade::chunk(w, {row, 0}, {1, 4});
    };
    handmade.items = [&](Writer& w) {
      for (const std::int64_t row : {1, 2, 3}) Handmade::item(w, {row, 0}, hint, row * 100, 50);
    };
    const auto decoded = handmade.decode();
    ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
    EXPECT_EQ(places(decoded->catalog.tensors[0]), (std::vector<std::uint64_t>{300, 0, 200, 100}));
    EXPECT_EQ(decoded->catalog.tensors[0].locations[1].length, 0u) << "no item was there for this chunk";
  }
}

TEST(MetadataDecoder, EqualChunksShareTheirItem) {
  Handmade handmade;
  handmade.chunks = [](Writer& w) {
    Handmade::chunk(w, {4, 0}, {0, 4});
    Handmade::chunk(w, {0, 0}, {4, 4});
    Handmade::chunk(w, {4, 0}, {0, 4});
    Handmade::chunk(w, {0, 0}, {4, 4});
  };
  handmade.items = [](Writer& w) {
    Handmade::item(w, {4, 0}, Handmade::number(2), 100, 50);
    Handmade::item(w, {0, 0}, Handmade::number(1), 200, 50);
    Handmade::item(w, {1, 1}, Handmade::number(1), 300, 50);  // begins at no chunk
  };
  const auto decoded = handmade.decode();
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
  EXPECT_EQ(places(decoded->catalog.tensors[0]), (std::vector<std::uint64_t>{100, 200, 100, 200}));
}

// Most objects are recognised by a stencil of the preceding object. The numbers cover every encoded length.
TEST(MetadataDecoder, ReadsManyChunksCorrectly) {
  std::vector<std::int64_t> rows = {0};
  for (std::int64_t row = 1; row < (std::int64_t{1} << 60); row = row * 3 + 1) rows.push_back(row);
  Handmade handmade;
  handmade.tensor_shape = {INT64_MAX, 1};
  handmade.chunks = [&](Writer& w) {
    for (std::size_t i = 0; i < rows.size(); ++i) Handmade::chunk(w, {rows[i], 0}, {rows[i] / 2 + 1, 1});
  };
  handmade.items = [&](Writer& w) {
    for (std::size_t i = rows.size(); i-- > 0;) {
      Handmade::item(w, {rows[i], 0}, Handmade::number(static_cast<std::int64_t>(i)), rows[i] + 7, rows[i] / 3 + 1);
    }
  };
  const auto decoded = handmade.decode();
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
  const CatalogTensor& tensor = decoded->catalog.tensors[0];
  ASSERT_EQ(tensor.chunk_count(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(tensor.chunk(i), Box::make({rows[i], 0}, {rows[i] / 2 + 1, 1}).value());
    EXPECT_EQ(tensor.locations[i].offset, static_cast<std::uint64_t>(rows[i] + 7));
    EXPECT_EQ(tensor.locations[i].length, static_cast<std::uint64_t>(rows[i] / 3 + 1));
  }
}

TEST(MetadataDecoder, ReadsTensorsOfAnyNames) {
  Catalog catalog;
  const std::vector<std::string> names = {
      "a", "fqn", "offset", "index", "relative_path", "length", "", std::string(300, 'x'), "z"};
  catalog.files = {"offset", "f1", "relative_path"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    CatalogTensor tensor;
    tensor.fqn = names[i];
    tensor.shape = {8, 2};
    for (std::uint32_t c = 0; c < 4; ++c) {
      for (const std::int64_t number :
           {2 * static_cast<std::int64_t>(c), std::int64_t{0}, std::int64_t{2}, std::int64_t{2}}) {
        tensor.boxes.push_back(number);
      }
      tensor.locations.push_back({c % 3, 1000 * i + c, 10 + c});
    }
    catalog.keys.push_back({true, static_cast<std::uint32_t>(i)});
    catalog.tensors.push_back(std::move(tensor));
  }
  const auto layout = MetadataTemplate::make(catalog);
  ASSERT_TRUE(layout.has_value());
  const auto decoded = decode_metadata(as_bytes(layout->render("id", "id", catalog.files)));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
  for (const CatalogTensor& tensor : catalog.tensors) {
    const CatalogTensor* read = decoded->catalog.find_tensor(tensor.fqn);
    ASSERT_NE(read, nullptr) << tensor.fqn;
    EXPECT_EQ(read->boxes, tensor.boxes);
    for (std::size_t c = 0; c < 4; ++c) {
      EXPECT_EQ(decoded->catalog.files[read->locations[c].file], catalog.files[tensor.locations[c].file]);
      EXPECT_EQ(read->locations[c].offset, tensor.locations[c].offset);
      EXPECT_EQ(read->locations[c].length, tensor.locations[c].length);
    }
  }
}

TEST(MetadataDecoder, NamesTheTransformsOfAnItem) {
  Handmade handmade;
  handmade.items = [](Writer& w) {
    Handmade::object(w, kModule, "MetadataIndex",
                     {{"fqn", [](Writer& to) { to.text("t"); }}, {"offset", Handmade::size({0, 0})}});
    Handmade::object(w, "torch.distributed.checkpoint.filesystem", "_StorageInfo",
                     {{"relative_path", [](Writer& to) { to.text("f"); }},
                      {"offset", Handmade::number(1)},
                      {"length", Handmade::number(2)},
                      {"transform_descriptors", [](Writer& to) {
                         to.empty_list();
                         to.text("stream.zstd/1");
                         to.append();
                       }}});
  };
  const auto decoded = handmade.decode();
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
  EXPECT_EQ(decoded->catalog.transforms.at("t"), "stream.zstd/1");
  EXPECT_EQ(places(decoded->catalog.tensors[0]), (std::vector<std::uint64_t>{1}));
}

TEST(MetadataDecoder, ReadsAChainMapOfMappings) {
  Handmade handmade;
  handmade.more.emplace_back("planner_data", [](Writer& w) {
    Handmade::object(w, "collections", "ChainMap", {{"maps", [](Writer& list) {
                                                       list.empty_list();
                                                       list.mark();
                                                       for (const std::int64_t winner : {1, 2}) {
                                                         list.empty_dict();
                                                         list.text("t");
                                                         list.text("place");
                                                         list.integer(winner);
                                                         list.tuple(2);
                                                         list.set_item();
                                                       }
                                                       list.appends();
                                                     }}});
  });
  const auto decoded = handmade.decode();
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
  const std::vector<std::pair<std::string, Path>> expected = {{"t", {"place", std::int64_t{1}}}};
  EXPECT_EQ(decoded->catalog.paths, expected);
}

TEST(MetadataDecoder, ReadsOldFilesWithoutAVersion) {
  const auto decoded = Handmade().decode();
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
  EXPECT_FALSE(decoded->catalog.version.has_value());
  EXPECT_FALSE(decoded->catalog.save_id.has_value());
  EXPECT_TRUE(decoded->catalog.tensors[0].requires_grad);
}

TEST(MetadataDecoder, ReadsThePathsOfEveryPython) {
  const auto id_of = [](std::string_view module, const std::vector<std::string>& parts) {
    Handmade handmade;
    handmade.more.emplace_back("storage_meta", [&](Writer& w) {
      Handmade::object(w, kModule, "StorageMeta", {{"checkpoint_id", [&](Writer& to) {
                                                      to.global(module, "PosixPath");
                                                      to.mark();
                                                      for (const std::string& part : parts) to.text(part);
                                                      to.tuple_since_mark();
                                                      to.reduce();
                                                    }}});
    });
    return handmade.decode().value().catalog.checkpoint_id;
  };
  EXPECT_EQ(id_of("pathlib", {"/", "ckpt", "step"}), "/ckpt/step");
  EXPECT_EQ(id_of("pathlib", {"ckpt", "step"}), "ckpt/step");
  EXPECT_EQ(id_of("pathlib._local", {"/ckpt/step"}), "/ckpt/step");
  EXPECT_EQ(id_of("elsewhere", {"x"}), std::nullopt);
}

void expect_refused(const Handmade& handmade, ErrorCode code) {
  const auto decoded = handmade.decode();
  ASSERT_FALSE(decoded.has_value());
  EXPECT_EQ(decoded.error().code(), code) << decoded.error().what();
  EXPECT_EQ(decoded.error().key(), "t") << decoded.error().what();
}

TEST(MetadataDecoder, RefusesChunksOutsideTheTensor) {
  using Extent64s = std::vector<std::int64_t>;
  const std::vector<std::pair<Extent64s, Extent64s>> wrong = {
      {{1, 0}, {4, 4}},         {{-1, 0}, {1, 4}},        {{0, 0}, {-1, 4}}, {{0, 0}, {5, 1}}, {{5, 0}, {0, 4}},
      {{INT64_MAX, 0}, {1, 1}}, {{0, 0}, {INT64_MAX, 1}}, {{0}, {4}},        {{0, 0}, {4}},    {{0, 0, 0}, {1, 1, 1}}};
  for (const auto& box : wrong) {
    SCOPED_TRACE(to_string(Extents(box.first)) + " " + to_string(Extents(box.second)));
    Handmade handmade;
    handmade.chunks = [&box](Writer& w) { Handmade::chunk(w, box.first, box.second); };
    expect_refused(handmade, ErrorCode::kCorrupt);
  }
}

TEST(MetadataDecoder, RefusesSizesThatCannotBe) {
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{-1, 4}, {INT64_MAX, 2}, {1ll << 32, 1ll << 32}, std::vector<std::int64_t>(65, 1)}) {
    Handmade handmade;
    handmade.tensor_shape = shape;
    handmade.chunks = [](Writer&) {};
    handmade.items = [](Writer&) {};
    expect_refused(handmade, ErrorCode::kCorrupt);
  }
}

Handmade::Part tuple_of(std::vector<std::int64_t> numbers) {
  return [numbers](Writer& w) {
    w.mark();
    for (const std::int64_t number : numbers) w.integer(number);
    w.tuple_since_mark();
  };
}

TEST(MetadataDecoder, ReadsTheStridesOfATensor) {
  for (const std::vector<std::int64_t>& strides :
       {std::vector<std::int64_t>{4, 1}, {1, 4}, {}, {0, INT64_MAX}, {1, 2, 3, 4, 5}}) {
    Handmade handmade;
    handmade.strides = tuple_of(strides);
    const auto decoded = handmade.decode();
    ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
    ASSERT_NE(decoded->catalog.tensors[0].strides, nullptr);
    EXPECT_EQ(*decoded->catalog.tensors[0].strides, Extents(strides));
  }
  Handmade handmade;
  EXPECT_EQ(handmade.decode()->catalog.tensors[0].strides, nullptr);
  handmade.strides = [](Writer& w) { w.none(); };
  EXPECT_EQ(handmade.decode()->catalog.tensors[0].strides, nullptr);
}

TEST(MetadataDecoder, ReadsTheStridesOfTorch) {
  const auto decoded = decode_metadata(as_bytes(kFromTorchWithStrides));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
  const auto strides_of = [&](std::string_view fqn) { return *decoded->catalog.find_tensor(fqn)->strides; };
  EXPECT_EQ(strides_of("rows"), (Extents{3, 1}));
  EXPECT_EQ(strides_of("columns"), (Extents{1, 2}));
  EXPECT_EQ(strides_of("scalar"), Extents());
}

TEST(MetadataDecoder, RefusesStridesThatCannotBe) {
  const std::vector<Handmade::Part> wrong = {
      tuple_of({4, -1}),
      tuple_of(std::vector<std::int64_t>(65, 1)),
      [](Writer& w) { w.integer(4); },
      [](Writer& w) { w.text("41"); },
      [](Writer& w) {
        w.text("4");
        w.tuple(1);
      },
  };
  for (const Handmade::Part& strides : wrong) {
    Handmade handmade;
    handmade.strides = strides;
    expect_refused(handmade, ErrorCode::kCorrupt);
  }
}

TEST(MetadataDecoder, RefusesPlacesThatCannotBe) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> wrong = {{-1, 5}, {5, -1}, {INT64_MAX, 1}, {1, INT64_MAX}};
  for (const auto& item : wrong) {
    Handmade handmade;
    handmade.items = [&](Writer& w) { Handmade::item(w, {0, 0}, Handmade::number(0), item.first, item.second); };
    expect_refused(handmade, ErrorCode::kCorrupt);
  }
}

TEST(MetadataDecoder, RefusesAnUnknownDType) {
  Handmade handmade;
  handmade.dtype = [](Writer& w) { w.global("torch", "float7"); };
  expect_refused(handmade, ErrorCode::kUnsupported);
  handmade.dtype = [](Writer& w) { w.global("os", "float32"); };
  expect_refused(handmade, ErrorCode::kCorrupt);
}

TEST(MetadataDecoder, RefusesOtherPickles) {
  for (const std::string& pickle : {"\x80\x02}."s, "cos\nsystem\n)R."s, "\x80\x04N."s}) {
    const auto decoded = decode_metadata(as_bytes(pickle));
    ASSERT_FALSE(decoded.has_value());
    EXPECT_EQ(decoded.error().code(), ErrorCode::kCorrupt);
  }
}

// A dict of a pickle may set a name twice. Python keeps the last value, and so does the decoder.
TEST(MetadataDecoder, AttributeSetTwiceHasLastValue) {
  Handmade handmade;
  handmade.chunks = [](Writer& w) {
    Handmade::object(w, kModule, "ChunkStorageMetadata",
                     {{"offsets", Handmade::size({1, 1})},
                      {"sizes", Handmade::size({2, 2})},
                      {"offsets", Handmade::size({0, 0})},
                      {"sizes", Handmade::size({4, 4})}});
  };
  const auto decoded = handmade.decode();
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
  EXPECT_EQ(decoded->catalog.tensors[0].chunk(0), Box::make({0, 0}, {4, 4}).value());
}

}  // namespace
}  // namespace cairn::dcp
