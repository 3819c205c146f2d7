// Pickles of `.metadata`: one that torch wrote, and handmade ones. For tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/dcp/metadata_decoder.h"
#include "format/pickle/writer.h"

namespace cairn::dcp {

using namespace std::string_literals;
using pickle::Writer;

inline std::span<const std::byte> as_bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

// Written by torch 2.13 on Python 3.11: model.w (bfloat16, 4 x 2, in two chunks), opt.groups.0.lr (0-d), opt.step (a
// value).
inline const std::string kFromTorch =
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

// Written by torch 2.15 on Python 3.11, with strides: rows (2 x 3), columns (2 x 3, the transposed of 3 x 2), scalar
// (0-d), step (a value).
inline const std::string kFromTorchWithStrides =
    "\x80\x04\x95\x9d\x04\x00\x00\x00\x00\x00\x00\x8c%torch.distributed.checkpoint.metadata\x94\x8c\x08Metadata"
    "\x94\x93\x94)\x81\x94}\x94(\x8c\x13state_dict_metadata\x94}\x94(\x8c\x04rows\x94h\x00\x8c\x15TensorStorageM"
    "etadata\x94\x93\x94)\x81\x94}\x94(\x8c\x0aproperties\x94h\x00\x8c\x10TensorProperties\x94\x93\x94)\x81\x94("
    "\x8c\x05torch\x94\x8c\x07"
    "float32\x94\x93\x94\x8c\x13torch.serialization\x94\x8c\x0b_get_layout\x94\x93"
    "\x94\x8c\x0dtorch.strided\x94\x85\x94R\x94\x89h\x00\x8c\x14_MEM_FORMAT_ENCODING\x94\x93\x94K\x00\x85\x94R"
    "\x94\x89K\x03K\x01\x86\x94t\x94"
    "b\x8c\x04size\x94\x8c\x05torch\x94\x8c\x04Size\x94\x93\x94K\x02K\x03\x86"
    "\x94\x85\x94R\x94\x8c\x06"
    "chunks\x94]\x94h\x00\x8c\x14"
    "ChunkStorageMetadata\x94\x93\x94)\x81\x94}\x94("
    "\x8c\x07offsets\x94h\"K\x00K\x00\x86\x94\x85\x94R\x94\x8c\x05sizes\x94h\"K\x02K\x03\x86\x94\x85\x94R\x94uba"
    "ub\x8c\x07"
    "columns\x94h\x09)\x81\x94}\x94(h\x0ch\x0e)\x81\x94(h\x12h\x18\x89h\x1c\x89K\x01K\x02\x86\x94t"
    "\x94"
    "bh\x1fh\"K\x02K\x03\x86\x94\x85\x94R\x94h&]\x94h))\x81\x94}\x94(h,h\"K\x00K\x00\x86\x94\x85\x94R\x94h"
    "0h\"K\x02K\x03\x86\x94\x85\x94R\x94ubaub\x8c\x06scalar\x94h\x09)\x81\x94}\x94(h\x0ch\x0e)\x81\x94(h\x12h"
    "\x18\x89h\x1c\x89)t\x94"
    "bh\x1fh\")\x85\x94R\x94h&]\x94h))\x81\x94}\x94(h,h\")\x85\x94R\x94h0h\")\x85\x94R"
    "\x94ubaub\x8c\x04step\x94h\x00\x8c\x14"
    "BytesStorageMetadata\x94\x93\x94)\x81\x94u\x8c\x0cplanner_data\x94}"
    "\x94(h\x07h\x07\x85\x94h4h4\x85\x94hFhF\x85\x94hThT\x85\x94u\x8c\x0cstorage_data\x94}\x94(h\x00\x8c\x0dMeta"
    "dataIndex\x94\x93\x94)\x81\x94}\x94(\x8c\x03"
    "fqn\x94hT\x8c\x05index\x94Nub\x8c'torch.distributed.checkpoin"
    "t.filesystem\x94\x8c\x0c_StorageInfo\x94\x93\x94)\x81\x94}\x94(\x8c\x0drelative_path\x94\x8c\x0c__0_0.distc"
    "p\x94\x8c\x06offset\x94K\x00\x8c\x06length\x94M\xed\x04ubha)\x81\x94}\x94(hdh\x07heK\x00hmh\"K\x00K\x00\x86"
    "\x94\x85\x94R\x94ubhh)\x81\x94}\x94(hkhlhmM\xed\x04hnM)\x06ubha)\x81\x94}\x94(hdh4heK\x00hmh\"K\x00K\x00"
    "\x86\x94\x85\x94R\x94ubhh)\x81\x94}\x94(hkhlhmM\x16\x0bhnM)\x06ubha)\x81\x94}\x94(hdhFheK\x00hmh\")\x85\x94"
    "R\x94ubhh)\x81\x94}\x94(hkhlhmM?\x11hnM)\x06ubu\x8c\x0cstorage_meta\x94h\x00\x8c\x0bStorageMeta\x94\x93\x94"
    ")\x81\x94}\x94(\x8c\x0d"
    "checkpoint_id\x94\x8c\x04"
    "ckpt\x94\x8c\x07save_id\x94\x8c$0b7f5a2e-6a5d-4f7e-9a51"
    "-1f2e3d4c5b6a\x94\x8c\x07load_id\x94N\x8c\x07modules\x94]\x94ub\x8c\x07version\x94\x8c\x05"
    "1.0.0\x94ub."s;

inline constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";

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
  Part strides;  // if set, the properties are those of torch 2.15

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
      if (strides) {
        to.none();
        to.boolean(false);
        strides(to);
      }
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

inline void expect_catalog_of_torch(const Catalog& catalog) {
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

inline void expect_small_entries_of_torch(const Catalog& catalog) {
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

}  // namespace cairn::dcp
