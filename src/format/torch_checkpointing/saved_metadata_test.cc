#include "format/torch_checkpointing/saved_metadata.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "format/pickle/value_writer.h"
#include "format/pickle/writer.h"

namespace cairn::torch_checkpointing {
namespace {

Result<SavedMetadata> read_bytes(const std::string& bytes) {
  return read_saved_metadata(std::as_bytes(std::span(bytes)));
}

Result<SavedMetadata> read(const Value& value) {
  pickle::Writer writer(4);
  EXPECT_TRUE(pickle::write_value(writer, value));
  writer.stop();
  return read_bytes(std::move(writer).take());
}

Value dict(std::vector<std::pair<Value, Value>> items) {
  Dict out;
  out.items = std::move(items);
  return Value(std::move(out));
}
Value list(std::vector<Value> items) { return Value(List{std::move(items)}); }
Value tuple(std::vector<Value> items) { return Value(Tuple{std::move(items)}); }

Value shard(int dim) { return dict({{"type", "Shard"}, {"dim", dim}}); }

Value mesh_of(Value shape, Value ranks) {
  return dict({{"device_type", "cuda"},
               {"mesh_shape", std::move(shape)},
               {"mesh_data", std::move(ranks)},
               {"mesh_dim_names", Value()}});
}

Value dtensor(Value shape, Value mesh, std::vector<Value> placements) {
  return dict({{"type", "DTensorShardingMetadata"},
               {"data", dict({{"global_shape", std::move(shape)},
                              {"dtype", "torch.bfloat16"},
                              {"stride", list({3, 1})},
                              {"mesh_spec", std::move(mesh)},
                              {"placements", list(std::move(placements))}})}});
}

Value of_ranks(Value sharding, Value ranks) {
  return list({dict({{"sharding_metadata", std::move(sharding)}, {"ranks", std::move(ranks)}})});
}

Value layout(const char* path, const char* type) {
  return dict({{"file_path", path}, {"serialization_format", dict({{"type", type}})}});
}

Value sample_sharding() { return dtensor(list({4, 3}), mesh_of(tuple({2}), tuple({1, 0})), {shard(0)}); }

Value version_2(Value item) {
  return dict({{"metadata", dict({{"model", std::move(item)}})}, {"world_size", 2}, {"version", "2.0"}});
}

Value item_of(Value shardings) {
  return dict({{"nested_path_to_metadata", dict({{R"(["layers",0,"w"])", std::move(shardings)}})},
               {"rank_to_layout_info", dict({{0, Value()}, {1, layout("x/m.st", "SafetensorsSerialization")}})}});
}

TEST(SavedMetadata, OfVersion2HasItemsAndTensors) {
  const Result<SavedMetadata> read_back = read(version_2(item_of(of_ranks(sample_sharding(), tuple({0, 1})))));
  ASSERT_TRUE(read_back) << read_back.error().what();
  EXPECT_EQ(read_back->world_size, 2U);
  ASSERT_EQ(read_back->items.size(), 1U);
  const SavedItem& item = read_back->items[0];
  EXPECT_EQ(item.name, "model");
  EXPECT_FALSE(item.files[0]);
  ASSERT_TRUE(item.files[1]);
  EXPECT_EQ(item.files[1]->name, "x/m.st");
  EXPECT_EQ(item.files[1]->form, FileForm::kSafetensors);
  ASSERT_EQ(item.tensors.size(), 1U);
  EXPECT_EQ(item.tensors[0].fqn, "model.layers.0.w");
  const auto& sharding = std::get<MeshSharding>(item.tensors[0].shardings[0].sharding);
  EXPECT_EQ(sharding.dtype, DType::kBFloat16);
  EXPECT_EQ(sharding.global_shape, (Extents{4, 3}));
  EXPECT_EQ(read_back->meshes[sharding.mesh].places.at(1), 0U);
  EXPECT_TRUE(read_back->has_rank(item.tensors[0].shardings[0].ranks, 1));
  EXPECT_FALSE(read_back->has_rank(item.tensors[0].shardings[0].ranks, 2));
}

TEST(SavedMetadata, OfVersion1HasFlatPaths) {
  for (const bool has_version : {false, true}) {
    std::vector<std::pair<Value, Value>> parts = {
        {"metadata", dict({{R"(["model","a",0])", of_ranks(sample_sharding(), tuple({0, 1}))}})},
        {"rank_to_layout_info_mappings",
         dict({{"0", dict({{"model", Value()}, {"config", layout("c.json", "JsonSerialization")}})},
               {1, dict({{"model", layout("m1.pt", "TorchSerialization")}})}})},
        {"world_size", 2}};
    if (has_version) parts.emplace_back("version", "1.0");
    const Result<SavedMetadata> read_back = read(dict(std::move(parts)));
    ASSERT_TRUE(read_back) << read_back.error().what();
    ASSERT_EQ(read_back->items.size(), 2U);
    EXPECT_EQ(read_back->items[0].tensors[0].fqn, "model.a.0");
    EXPECT_FALSE(read_back->items[0].files[0]);
    EXPECT_EQ(read_back->items[0].files[1]->name, "m1.pt");
    EXPECT_EQ(read_back->items[1].name, "config");
    EXPECT_EQ(read_back->items[1].files[0]->form, FileForm::kJson);
  }
}

TEST(SavedMetadata, OfTorchCheckpointingIsRead) {
  std::ifstream file("fuzz/corpus/torch_checkpointing/two_ranks.pkl", std::ios::binary);
  const Result<SavedMetadata> read_back = read_bytes({std::istreambuf_iterator<char>(file), {}});
  ASSERT_TRUE(read_back) << read_back.error().what();
  EXPECT_EQ(read_back->world_size, 2U);
  EXPECT_EQ(read_back->items.size(), 2U);
}

TEST(SavedMetadata, HasBoxesOfLocalTensors) {
  const Value boxes = dict({{"type", "default_tensor_v1"},
                            {"data", dict({{"global_shape", list({6})},
                                           {"global_offsets", list({list({0}), list({4})})},
                                           {"local_offsets", list({list({2}), list({0})})},
                                           {"local_sizes", list({list({1}), list({2})})},
                                           {"dtype", "torch.float32"}})}});
  const Result<SavedMetadata> read_back = read(version_2(item_of(of_ranks(boxes, tuple({1})))));
  ASSERT_TRUE(read_back) << read_back.error().what();
  const auto& sharding = std::get<BoxSharding>(read_back->items[0].tensors[0].shardings[0].sharding);
  ASSERT_EQ(sharding.pieces.size(), 2U);
  EXPECT_EQ(sharding.pieces[1].box.offsets(), Extents{4});
  EXPECT_EQ(sharding.pieces[0].local_offsets, Extents{2});
}

TEST(SavedMetadata, UnknownClassesAreOfTheirKey) {
  const Value unknown = dict({{"type", "my.Sharding"}, {"data", dict({{"anything", 1}})}});
  const Result<SavedMetadata> read_back = read(version_2(item_of(of_ranks(unknown, tuple({0, 1})))));
  ASSERT_TRUE(read_back) << read_back.error().what();
  const auto& sharding = std::get<UnknownSharding>(read_back->items[0].tensors[0].shardings[0].sharding);
  EXPECT_EQ(sharding.reason, "the sharding class my.Sharding");
}

ErrorCode code_of(const Value& value) {
  const Result<SavedMetadata> read_back = read(value);
  return read_back ? ErrorCode::kInternal : read_back.error().code();
}

TEST(SavedMetadata, DamageIsRefused) {
  const auto with = [](Value sharding, Value ranks) {
    return version_2(item_of(of_ranks(std::move(sharding), std::move(ranks))));
  };
  const Value mesh = mesh_of(tuple({2}), tuple({0, 1}));
  const std::vector<Value> damaged = {
      list({}),
      dict({{"step", 3}}),
      dict({{"metadata", dict({})}, {"world_size", 0}, {"version", "2.0"}}),
      with(sample_sharding(), tuple({0, 2})),                                                // a rank of no job
      with(sample_sharding(), tuple({0, 0})),                                                // a rank twice
      with(dtensor(list({4, 3}), mesh, {}), tuple({0})),                                     // no placement
      with(dtensor(list({4, 3}), mesh, {shard(2)}), tuple({0})),                             // no such dimension
      with(dtensor(list({-4, 3}), mesh, {shard(0)}), tuple({0})),                            // a negative size
      with(dtensor(list({4}), mesh_of(tuple({3}), tuple({0, 1})), {shard(0)}), tuple({0})),  // a rank too few
      with(dtensor(list({4}), mesh_of(tuple({2}), tuple({1, 1})), {shard(0)}), tuple({0})),  // a rank twice
      version_2(dict({{"nested_path_to_metadata", dict({})}, {"rank_to_layout_info", dict({{0, Value()}})}})),
      version_2(dict({{"nested_path_to_metadata", dict({{"layers", list({})}})}})),  // a path that is no JSON
  };
  for (std::size_t i = 0; i < damaged.size(); ++i) EXPECT_EQ(code_of(damaged[i]), ErrorCode::kCorrupt) << i;
  EXPECT_EQ(code_of(dict({{"metadata", dict({})}, {"world_size", 1}, {"version", "3.0"}})), ErrorCode::kUnsupported);
}

TEST(SavedMetadata, NamesARefusedClass) {
  pickle::Writer writer(4);
  writer.global("os", "system");
  writer.stop();
  const Result<SavedMetadata> read_back = read_bytes(std::move(writer).take());
  ASSERT_FALSE(read_back);
  EXPECT_EQ(read_back.error().code(), ErrorCode::kUnsafe);
  EXPECT_EQ(read_back.error().actual(), "os.system");
}

TEST(DefaultFileName, NamesItemAndRank) {
  EXPECT_EQ(default_file_name("model", 12), "model_12.pt");
  const auto parsed = parse_default_file_name("my_model_12.pt");
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->item, "my_model");
  EXPECT_EQ(parsed->rank, 12U);
  for (const char* name : {"model.pt", "model_.pt", "_0.pt", "model_01.pt", "model_0.bin", "model_0x.pt",
                           "mp_rank_00_model_states.pt", "model_99999999999.pt"}) {
    EXPECT_FALSE(parse_default_file_name(name)) << name;
  }
}

}  // namespace
}  // namespace cairn::torch_checkpointing
