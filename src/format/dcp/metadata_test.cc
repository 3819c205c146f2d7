#include "format/dcp/metadata_decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "format/dcp/metadata_template.h"
#include "format/pickle/machine.h"
#include "format/pickle/writer.h"

namespace cairn::dcp {
namespace {

using namespace std::string_literals;
using pickle::Writer;

std::span<const std::byte> as_bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

// Written by torch 2.13 on Python 3.11: model.w (bfloat16, 4 x 2, in two chunks), opt.groups.0.lr (0-d), opt.step (a
// value).
const std::string kFromTorch =
    "\x80\x04\x95\xe2\x04\x00\x00\x00\x00\x00\x00\x8c%torch.distributed.checkpoint.metadata\x94\x8c\x08Metadata"
    "\x94\x93\x94)\x81\x94}\x94(\x8c\x13state_dict_metadata\x94}\x94(\x8c\x07model.w\x94h\x00\x8c\x15TensorStor"
    "ageMetadata\x94\x93\x94)\x81\x94}\x94(\x8c\x0aproperties\x94h\x00\x8c\x10TensorProperties\x94\x93\x94)\x81"
    "\x94(\x8c\x05torch\x94\x8c\x08"
    "bfloat16\x94\x93\x94\x8c\x13torch.serialization\x94\x8c\x0b_get_layout\x94"
    "\x93\x94\x8c\x0dtorch.strided\x94\x85\x94R\x94\x89h\x00\x8c\x14_MEM_FORMAT_ENCODING\x94\x93\x94K\x00\x85\x94"
    "R\x94\x89t\x94"
    "b\x8c\x04size\x94\x8c\x05torch\x94\x8c\x04Size\x94\x93\x94K\x04K\x02\x86\x94\x85\x94R\x94\x8c"
    "\x06"
    "chunks\x94]\x94(h\x00\x8c\x14"
    "ChunkStorageMetadata\x94\x93\x94)\x81\x94}\x94(\x8c\x07offsets\x94h!K"
    "\x00K\x00\x86\x94\x85\x94R\x94\x8c\x05sizes\x94h!K\x02K\x02\x86\x94\x85\x94R\x94ubh()\x81\x94}\x94(h+h!K\x02"
    "K\x00\x86\x94\x85\x94R\x94h/h!K\x02K\x02\x86\x94\x85\x94R\x94ubeub\x8c\x0fopt.groups.0.lr\x94h\x09)\x81\x94"
    "}\x94(h\x0ch\x0e)\x81\x94(h\x10\x8c\x07"
    "float32\x94\x93\x94h\x18\x89h\x1c\x89t\x94"
    "bh\x1eh!)\x85\x94R\x94"
    "h%]\x94h()\x81\x94}\x94(h+h!)\x85\x94R\x94h/h!)\x85\x94R\x94ubaub\x8c\x08opt.step\x94h\x00\x8c\x14"
    "BytesS"
    "torageMetadata\x94\x93\x94)\x81\x94u\x8c\x0cplanner_data\x94}\x94(h\x07\x8c\x05model\x94\x8c\x01w\x94\x86\x94"
    "h;(\x8c\x03opt\x94\x8c\x06groups\x94K\x00\x8c\x02lr\x94t\x94hKhT\x8c\x04step\x94\x86\x94u\x8c\x0cstorage_d"
    "ata\x94}\x94(h\x00\x8c\x0dMetadataIndex\x94\x93\x94)\x81\x94}\x94(\x8c\x03"
    "fqn\x94hK\x8c\x05index\x94Nub\x8c"
    "'torch.distributed.checkpoint.filesystem\x94\x8c\x0c_StorageInfo\x94\x93\x94)\x81\x94}\x94(\x8c\x0drelativ"
    "e_path\x94\x8c\x0c__0_0.distcp\x94\x8c\x06offset\x94K\x00\x8c\x06length\x94M\xed\x04ubh])\x81\x94}\x94(h`h"
    "\x07haK\x00hih!K\x00K\x00\x86\x94\x85\x94R\x94ubhd)\x81\x94}\x94(hg\x8c\x0c__0_0.distcp\x94hiKdhjM\xdc\x05"
    "ubh])\x81\x94}\x94(h`h;haK\x00hih!)\x85\x94R\x94ubhd)\x81\x94}\x94(hghhhiM\x16\x0bhjM)\x06ubh])\x81\x94}\x94"
    "(h`\x8c\x07model.w\x94haK\x01hih!K\x02K\x00\x86\x94\x85\x94R\x94ubhd)\x81\x94}\x94(hg\x8c\x0c__1_0.distcp\x94"
    "hi\x8a\x05\x00\x00\x00\x00\x02hjM\xdc\x05ubu\x8c\x0cstorage_meta\x94h\x00\x8c\x0bStorageMeta\x94\x93\x94)\x81"
    "\x94}\x94(\x8c\x0d"
    "checkpoint_id\x94\x8c\x07pathlib\x94\x8c\x09PosixPath\x94\x93\x94\x8c\x01/\x94\x8c\x04"
    "ckpt\x94\x8c\x06step-1\x94\x87\x94R\x94\x8c\x07save_id\x94\x8c$0b7f5a2e-6a5d-4f7e-9a51-1f2e3d4c5b6a\x94\x8c"
    "\x07load_id\x94N\x8c\x07modules\x94]\x94ub\x8c\x07version\x94\x8c\x05"
    "1.0.0\x94ub."s;

constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";

// A `.metadata` of one tensor "t" of shape {4, 4}. A test may replace each part.
struct Handmade {
  using Part = std::function<void(Writer&)>;

  static void shape(Writer& w, const std::vector<std::int64_t>& numbers) {
    w.global("torch", "Size");
    w.mark();
    for (const std::int64_t number : numbers) w.integer(number);
    w.tuple_since_mark();
    w.tuple(1);
    w.reduce();
  }
  static void object(Writer& w, std::string_view module, std::string_view name,
                     const std::vector<std::pair<std::string, Part>>& attributes) {
    w.global(module, name);
    w.empty_tuple();
    w.new_instance();
    w.empty_dict();
    w.mark();
    for (const auto& [attribute, part] : attributes) {
      w.shared_text(attribute);
      part(w);
    }
    w.set_items();
    w.build();
  }
  static Part number(std::int64_t value) {
    return [value](Writer& w) { w.integer(value); };
  }
  static Part size(std::vector<std::int64_t> numbers) {
    return [numbers](Writer& w) { shape(w, numbers); };
  }
  static void chunk(Writer& w, const std::vector<std::int64_t>& offsets, const std::vector<std::int64_t>& sizes) {
    object(w, kModule, "ChunkStorageMetadata", {{"offsets", size(offsets)}, {"sizes", size(sizes)}});
  }
  static void item(Writer& w, const std::vector<std::int64_t>& offsets, Part hint, std::int64_t place,
                   std::int64_t length) {
    object(w, kModule, "MetadataIndex",
           {{"fqn", [](Writer& to) { to.text("t"); }}, {"index", hint}, {"offset", size(offsets)}});
    object(
        w, "torch.distributed.checkpoint.filesystem", "_StorageInfo",
        {{"relative_path", [](Writer& to) { to.text("f"); }}, {"offset", number(place)}, {"length", number(length)}});
  }

  Part dtype = [](Writer& w) { w.global("torch", "float32"); };
  std::vector<std::int64_t> tensor_shape = {4, 4};
  Part chunks = [](Writer& w) { chunk(w, {0, 0}, {4, 4}); };
  Part items = [](Writer& w) { item(w, {0, 0}, number(0), 10, 20); };
  std::vector<std::pair<std::string, Part>> more;

  std::string pickle() const {
    Writer w(4);
    const Part properties = [this](Writer& to) {
      to.global(kModule, "TensorProperties");
      to.empty_tuple();
      to.new_instance();
      to.mark();
      dtype(to);
      to.none();
      to.boolean(true);
      to.tuple_since_mark();
      to.build();
    };
    const Part entries = [&](Writer& to) {
      to.empty_dict();
      to.text("t");
      object(to, kModule, "TensorStorageMetadata",
             {{"properties", properties}, {"size", size(tensor_shape)}, {"chunks", [this](Writer& list) {
                                                                           list.empty_list();
                                                                           list.mark();
                                                                           chunks(list);
                                                                           list.appends();
                                                                         }}});
      to.set_item();
    };
    const Part storage = [this](Writer& to) {
      to.empty_dict();
      to.mark();
      items(to);
      to.set_items();
    };
    std::vector<std::pair<std::string, Part>> attributes = {{"state_dict_metadata", entries},
                                                            {"storage_data", storage}};
    attributes.insert(attributes.end(), more.begin(), more.end());
    object(w, kModule, "Metadata", attributes);
    w.stop();
    return std::move(w).take();
  }

  Result<DecodedMetadata> decode() const { return decode_metadata(as_bytes(pickle())); }
};

std::vector<std::uint64_t> places(const CatalogTensor& tensor) {
  std::vector<std::uint64_t> offsets;
  for (const ItemLocation& location : tensor.locations) offsets.push_back(location.length == 0 ? 0 : location.offset);
  return offsets;
}

void expect_catalog_of_torch(const Catalog& catalog) {
  ASSERT_EQ(catalog.keys.size(), 3u);
  const CatalogTensor* w = catalog.find_tensor("model.w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->dtype, DType::kBFloat16);
  EXPECT_EQ(w->shape, (Extents{4, 2}));
  ASSERT_EQ(w->chunk_count(), 2u);
  EXPECT_EQ(w->chunk(1), Box::make({2, 0}, {2, 2}).value());
  EXPECT_EQ(w->locations[1].offset, std::uint64_t{1} << 33);
  EXPECT_EQ(w->locations[1].length, 1500u);
  EXPECT_EQ(catalog.files[w->locations[1].file], "__1_0.distcp");
  EXPECT_EQ(catalog.files[w->locations[0].file], "__0_0.distcp");
}

void expect_small_entries_of_torch(const Catalog& catalog) {
  const CatalogTensor* lr = catalog.find_tensor("opt.groups.0.lr");
  ASSERT_NE(lr, nullptr);
  EXPECT_TRUE(lr->shape.empty());
  ASSERT_EQ(lr->chunk_count(), 1u);
  EXPECT_NE(lr->locations[0].length, 0u);
  const CatalogValue* step = catalog.find_value("opt.step");
  ASSERT_NE(step, nullptr);
  EXPECT_NE(step->location.length, 0u);
  const std::vector<std::pair<std::string, Path>> paths = {
      {"model.w", {"model", "w"}},
      {"opt.groups.0.lr", {"opt", "groups", std::int64_t{0}, "lr"}},
      {"opt.step", {"opt", "step"}},
  };
  EXPECT_EQ(catalog.paths, paths);
  EXPECT_EQ(catalog.version, "1.0.0");
  EXPECT_EQ(catalog.save_id, "0b7f5a2e-6a5d-4f7e-9a51-1f2e3d4c5b6a");
}

TEST(Metadata, OfTorchBecomesACatalog) {
  const auto decoded = decode_metadata(as_bytes(kFromTorch));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
  expect_catalog_of_torch(decoded->catalog);
  expect_small_entries_of_torch(decoded->catalog);
  EXPECT_EQ(decoded->catalog.checkpoint_id, "/ckpt/step-1");
  EXPECT_EQ(decoded->pickle_bytes, kFromTorch.size());
  EXPECT_TRUE(decoded->catalog.extra.empty());
}

TEST(Metadata, MayBeFollowedByACommitRecord) {
  const std::string file = kFromTorch + "whatever";
  const auto decoded = decode_metadata(as_bytes(file));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->pickle_bytes, kFromTorch.size());
}

TEST(Metadata, CutAnywhereIsAnError) {
  for (std::size_t size = 0; size < kFromTorch.size(); ++size) {
    EXPECT_FALSE(decode_metadata(as_bytes(kFromTorch).first(size)).has_value()) << size;
  }
}

TEST(Metadata, WithAnyByteChangedEitherFailsOrKeepsItsPromises) {
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

TEST(MetadataTemplate, RendersWhatIsReadAsTheSameCatalog) {
  const auto decoded = decode_metadata(as_bytes(kFromTorch));
  ASSERT_TRUE(decoded.has_value());
  const auto layout = MetadataTemplate::make(decoded->catalog);
  ASSERT_TRUE(layout.has_value());
  const std::string rendered =
      layout->render("0b7f5a2e-6a5d-4f7e-9a51-1f2e3d4c5b6a", "some/where", decoded->catalog.files);
  const auto again = decode_metadata(as_bytes(rendered));
  ASSERT_TRUE(again.has_value()) << again.error().what();
  expect_catalog_of_torch(again->catalog);
  expect_small_entries_of_torch(again->catalog);
  EXPECT_EQ(again->catalog.checkpoint_id, "some/where");
}

TEST(MetadataTemplate, HasSlotsForNamesOfAnyLength) {
  const auto decoded = decode_metadata(as_bytes(kFromTorch));
  ASSERT_TRUE(decoded.has_value());
  const auto layout = MetadataTemplate::make(decoded->catalog);
  ASSERT_TRUE(layout.has_value());
  std::vector<std::string> files = {std::string(300, 'a'), ""};
  ASSERT_EQ(layout->file_count(), files.size());
  const auto again = decode_metadata(as_bytes(layout->render("another id", std::string(70'000, 'c'), files)));
  ASSERT_TRUE(again.has_value()) << again.error().what();
  const auto file_of = [](const Catalog& catalog, std::string_view fqn, std::size_t chunk) {
    return catalog.files[catalog.find_tensor(fqn)->locations[chunk].file];
  };
  for (const std::size_t chunk : {0u, 1u}) {
    const std::uint32_t number = decoded->catalog.find_tensor("model.w")->locations[chunk].file;
    EXPECT_EQ(file_of(again->catalog, "model.w", chunk), files[number]);
  }
  EXPECT_EQ(again->catalog.save_id, "another id");
  EXPECT_EQ(again->catalog.checkpoint_id, std::string(70'000, 'c'));
}

TEST(MetadataTemplate, KeepsAttributesThatNobodyKnows) {
  Handmade handmade;
  handmade.more.emplace_back("mcore_data", [](Writer& w) {
    w.empty_list();
    w.mark();
    Handmade::item(w, {1, 2}, Handmade::number(3), 4, 5);
    Handmade::chunk(w, {1}, {2});
    w.global("megatron.core", "Thing");
    w.integer(7);
    w.tuple(1);
    w.reduce();
    w.appends();
  });
  handmade.more.emplace_back("planner_data", [](Writer& w) { w.text("not a mapping"); });
  const auto decoded = handmade.decode();
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
  ASSERT_EQ(decoded->catalog.extra.size(), 2u);
  const List* kept = decoded->catalog.extra[0].second.get_if<List>();
  ASSERT_NE(kept, nullptr);
  ASSERT_EQ(kept->items.size(), 4u);
  EXPECT_EQ(kept->items[0].object()->qualified_name(), std::string(kModule) + ".MetadataIndex");
  const auto layout = MetadataTemplate::make(decoded->catalog);
  ASSERT_TRUE(layout.has_value());
  const auto again = decode_metadata(as_bytes(layout->render("", "", decoded->catalog.files)));
  ASSERT_TRUE(again.has_value()) << again.error().what();
  EXPECT_EQ(again->catalog.extra.size(), 2u);
  for (const auto& attribute : decoded->catalog.extra) {
    EXPECT_NE(std::find(again->catalog.extra.begin(), again->catalog.extra.end(), attribute),
              again->catalog.extra.end())
        << attribute.first;
  }
}

TEST(Metadata, FindsItemsWithoutOrWithAWrongHint) {
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

TEST(Metadata, EqualChunksShareTheirItem) {
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
TEST(Metadata, OfManyChunksIsReadRight) {
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

TEST(Metadata, OfManyTensorsIsReadRightWhateverTheirNames) {
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

TEST(Metadata, NamesTheTransformsOfAnItem) {
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

TEST(Metadata, ReadsAChainMapOfMappings) {
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

TEST(Metadata, LacksVersionAndStorageMetaInOldFiles) {
  const auto decoded = Handmade().decode();
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
  EXPECT_FALSE(decoded->catalog.version.has_value());
  EXPECT_FALSE(decoded->catalog.save_id.has_value());
  EXPECT_TRUE(decoded->catalog.tensors[0].requires_grad);
}

TEST(Metadata, ReadsPathsAsEachPythonWritesThem) {
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

TEST(Metadata, RefusesChunksThatDoNotLieInTheirTensor) {
  using Numbers = std::vector<std::int64_t>;
  const std::vector<std::pair<Numbers, Numbers>> wrong = {
      {{1, 0}, {4, 4}},         {{-1, 0}, {1, 4}},        {{0, 0}, {-1, 4}}, {{0, 0}, {5, 1}}, {{5, 0}, {0, 4}},
      {{INT64_MAX, 0}, {1, 1}}, {{0, 0}, {INT64_MAX, 1}}, {{0}, {4}},        {{0, 0}, {4}},    {{0, 0, 0}, {1, 1, 1}}};
  for (const auto& box : wrong) {
    SCOPED_TRACE(to_string(Extents(box.first)) + " " + to_string(Extents(box.second)));
    Handmade handmade;
    handmade.chunks = [&box](Writer& w) { Handmade::chunk(w, box.first, box.second); };
    expect_refused(handmade, ErrorCode::kCorrupt);
  }
}

TEST(Metadata, RefusesSizesThatCannotBe) {
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{-1, 4}, {INT64_MAX, 2}, {1ll << 32, 1ll << 32}, std::vector<std::int64_t>(65, 1)}) {
    Handmade handmade;
    handmade.tensor_shape = shape;
    handmade.chunks = [](Writer&) {};
    handmade.items = [](Writer&) {};
    expect_refused(handmade, ErrorCode::kCorrupt);
  }
}

TEST(Metadata, RefusesPlacesThatCannotBe) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> wrong = {{-1, 5}, {5, -1}, {INT64_MAX, 1}, {1, INT64_MAX}};
  for (const auto& item : wrong) {
    Handmade handmade;
    handmade.items = [&](Writer& w) { Handmade::item(w, {0, 0}, Handmade::number(0), item.first, item.second); };
    expect_refused(handmade, ErrorCode::kCorrupt);
  }
}

TEST(Metadata, RefusesADTypeThatItDoesNotKnow) {
  Handmade handmade;
  handmade.dtype = [](Writer& w) { w.global("torch", "float7"); };
  expect_refused(handmade, ErrorCode::kUnsupported);
  handmade.dtype = [](Writer& w) { w.global("os", "float32"); };
  expect_refused(handmade, ErrorCode::kCorrupt);
}

TEST(Metadata, IsNotJustAnyPickle) {
  for (const std::string& pickle : {"\x80\x02}."s, "cos\nsystem\n)R."s, "\x80\x04N."s}) {
    const auto decoded = decode_metadata(as_bytes(pickle));
    ASSERT_FALSE(decoded.has_value());
    EXPECT_EQ(decoded.error().code(), ErrorCode::kCorrupt);
  }
}

}  // namespace
}  // namespace cairn::dcp
