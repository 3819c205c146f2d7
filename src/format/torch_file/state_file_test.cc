#include "format/torch_file/state_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "format/torch_file/value_archive.h"

namespace cairn::torch_file {
namespace {

// The seeds of the fuzz target, which torch 2.13 wrote. Tests run in the root of the repository.
std::string seed(const std::string& name) {
  std::ifstream file("fuzz/corpus/state_file/" + name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

// A file in memory, open.
struct Opened {
  explicit Opened(std::string file_bytes) : bytes(std::move(file_bytes)) {}
  std::string bytes;
  MemorySource source{std::as_bytes(std::span(bytes))};
  Result<std::unique_ptr<StateFile>> file = StateFile::open(source);
};

std::vector<std::string> keys_of(const StateFile& file) {
  std::vector<std::string> keys;
  for (const StateFile::Entry& entry : file.entries()) keys.push_back(entry.fqn);
  return keys;
}

const std::vector<std::string> kFormats = {"archive.pt", "legacy.pt", "protocol_4.pt"};

TEST(StateFile, HasTheKeysOfDcpsFlattening) {
  for (const std::string& name : kFormats) {
    SCOPED_TRACE(name);
    const Opened opened(seed(name));
    ASSERT_TRUE(opened.file) << opened.file.error().what();
    const std::vector<std::string> keys = keys_of(**opened.file);
    const std::vector<std::string> first{"model.weight", "model.bias", "optimizer.state.0.step"};
    ASSERT_GT(keys.size(), first.size());
    EXPECT_TRUE(std::equal(first.begin(), first.end(), keys.begin()));
    const StateFile& file = **opened.file;
    for (const char* key : {"list.0", "list.1", "list.2.a", "plain", "tuple", "sparse", "1", "(1, 2)", "counter.a",
                            "default.z", "step", "optimizer.param_groups.0.lr"}) {
      EXPECT_NE(file.find(key), nullptr) << key;
    }
    EXPECT_EQ(file.find("empty"), nullptr);
    EXPECT_TRUE(std::holds_alternative<std::int64_t>(file.find("list.1")->path[1]));
    EXPECT_FALSE(file.find("sparse")->tensor);
    EXPECT_FALSE(file.find("tuple")->tensor);
  }
}

TEST(StateFile, OfAnItemHasLocalTensors) {
  const std::string bytes = seed("dtensors.pt");
  const MemorySource source(std::as_bytes(std::span(bytes)));
  const auto item = StateFile::open_item(source, "model");
  ASSERT_TRUE(item) << item.error().what();
  const StateFile::Entry* const weight = (*item)->find("model.0.weight");
  ASSERT_NE(weight, nullptr);
  ASSERT_TRUE(weight->tensor);
  EXPECT_EQ(weight->local_of, "DTensor");
  EXPECT_EQ(weight->tensor->sizes, (Extents{3, 7}));
  ASSERT_TRUE(weight->global_sizes);
  EXPECT_EQ(*weight->global_sizes, (Extents{5, 7}));
  const Result<std::string> payload = (*item)->payload(*weight);  // of the local tensor
  ASSERT_TRUE(payload) << payload.error().what();
  const auto decoded = decode_value(MemorySource(std::as_bytes(std::span(*payload))));
  ASSERT_TRUE(decoded) << decoded.error().what();
  ASSERT_NE(decoded->get_if<Array>(), nullptr);
  EXPECT_EQ(decoded->get_if<Array>()->shape, (Extents{3, 7}));
  // As a state, the file has DTensors, which only torch makes.
  const auto state = StateFile::open(source);
  ASSERT_TRUE(state) << state.error().what();
  EXPECT_FALSE((*state)->find("0.weight")->tensor);
}

TEST(StateFile, OfAnItemMayHoldAnything) {
  const std::string bytes = seed("list.pt");
  const MemorySource source(std::as_bytes(std::span(bytes)));
  EXPECT_FALSE(StateFile::open(source));
  const auto item = StateFile::open_item(source, "losses");
  ASSERT_TRUE(item) << item.error().what();
  for (const StateFile::Entry& entry : (*item)->entries()) EXPECT_TRUE(entry.fqn.starts_with("losses")) << entry.fqn;
  EXPECT_FALSE((*item)->entries().empty());
}

TEST(StateFile, SharedStorageIsOneRecord) {
  for (const std::string& name : kFormats) {
    SCOPED_TRACE(name);
    const Opened opened(seed(name));
    const StateFile& file = **opened.file;
    const StoredTensor whole = file.tensor(*file.find("w")).value();
    for (const char* key : {"tied", "view", "t", "parameter", "list.1"}) {
      EXPECT_EQ(file.tensor(*file.find(key))->record_offset, whole.record_offset) << key;
    }
    const StoredTensor view = file.tensor(*file.find("view")).value();
    EXPECT_EQ(view.sizes, (Extents{2, 2}));
    EXPECT_EQ(view.strides, (Extents{4, 1}));
    EXPECT_EQ(view.first_element, 6u);
    EXPECT_TRUE(file.tensor(*file.find("parameter"))->requires_grad);
  }
}

TEST(StateFile, ArchiveOfAnEntryHasItsValue) {
  for (const std::string& name : kFormats) {
    SCOPED_TRACE(name);
    const Opened opened(seed(name));
    const StateFile& file = **opened.file;
    for (const StateFile::Entry& entry : file.entries()) {
      SCOPED_TRACE(entry.fqn);
      const Value value = file.value(entry).value();
      const std::string payload = file.payload(entry).value();
      EXPECT_EQ(decode_value(MemorySource(std::as_bytes(std::span(payload)))).value(), value);
    }
    EXPECT_EQ(first_unknown_class(*file.value(*file.find("sparse"))), "torch._utils._rebuild_sparse_tensor");
  }
}

TEST(StateFile, ReadsQuantisedOnlyAsArchive) {
  const Opened opened(seed("quantised.pt"));
  const StateFile& file = **opened.file;
  ASSERT_TRUE(file.find("q")->tensor);
  EXPECT_EQ(file.tensor(*file.find("q")).error().code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(file.tensor(*file.find("w")));
  EXPECT_TRUE(file.payload(*file.find("q")));
}

TEST(StateFile, UnknownStorageIsItsBytes) {
  const Opened opened(seed("opaque_storages.pt"));
  const StateFile& file = **opened.file;
  const Value storage = file.value(*file.find("storage")).value();
  const auto& parts = storage.get_if<Tuple>()->items;
  ASSERT_EQ(parts.size(), 1u);
  ASSERT_NE(parts[0].object(), nullptr);
  EXPECT_EQ(parts[0].object()->qualified_name(), "torch.storage._load_storage");
  const auto& arguments = parts[0].object()->arguments.get_if<Tuple>()->items;
  ASSERT_EQ(arguments.size(), 2u);
  EXPECT_EQ(arguments[0], Value("UntypedStorage"));
  ASSERT_NE(arguments[1].get_if<Array>(), nullptr);
  EXPECT_EQ(arguments[1].get_if<Array>()->data.size(), 32u);
  EXPECT_FALSE(file.storage_problems(8).size());
}

TEST(StateFile, EntriesOfEveryKindAreArchived) {
  for (const char* name : {"opaque_storages.pt", "legacy_module.pt", "archive_module.pt", "protocol_1.pt"}) {
    const Opened opened(seed(name));
    ASSERT_TRUE(opened.file) << name << opened.file.error().what();
    for (const StateFile::Entry& entry : (*opened.file)->entries()) {
      const Result<Value> value = (*opened.file)->value(entry);
      ASSERT_TRUE(value) << entry.fqn << value.error().what();
      const Result<std::string> payload = (*opened.file)->payload(entry);
      ASSERT_TRUE(payload) << entry.fqn << payload.error().what();
      EXPECT_EQ(decode_value(MemorySource(std::as_bytes(std::span(*payload)))).value(), *value) << name << entry.fqn;
      EXPECT_TRUE(check_storages(MemorySource(std::as_bytes(std::span(*payload)))));
    }
  }
}

TEST(StateFile, LegacyModuleEqualsArchived) {
  const Opened legacy(seed("legacy_module.pt"));
  const Opened archive(seed("archive_module.pt"));
  const auto module_of = [](const Opened& opened) { return (*opened.file)->value(*(*opened.file)->find("m")).value(); };
  EXPECT_EQ(module_of(legacy), module_of(archive));
}

TEST(StateFile, OnlyAMappingIsAStateDict) {
  const Opened opened(seed("list.pt"));
  ASSERT_FALSE(opened.file);
  EXPECT_EQ(opened.file.error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(opened.file.error().actual(), "a list");
}

TEST(StateFile, FlippedByteInPickleIsFound) {
  const std::string bytes = seed("archive.pt");
  const std::size_t place = bytes.find("optimizer");
  ASSERT_NE(place, std::string::npos);
  std::string flipped = bytes;
  flipped[place] = static_cast<char>(flipped[place] ^ 1);
  const Opened opened(flipped);
  ASSERT_FALSE(opened.file);
  EXPECT_EQ(opened.file.error().code(), ErrorCode::kCorrupt);
}

TEST(StateFile, RefusesACutLegacyFile) {
  const std::string bytes = seed("legacy.pt");
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    ASSERT_FALSE(Opened(bytes.substr(0, length)).file) << length;
  }
}

TEST(StateFile, RefusesALongerLegacyFile) {
  const std::string bytes = seed("legacy.pt");
  EXPECT_EQ(Opened(bytes + "x").file.error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(Opened(bytes + bytes).file.error().offset(), bytes.size());
}

TEST(StateFile, LegacyNeedsMagicAndVersion) {
  const std::string bytes = seed("legacy.pt");
  std::string magic = bytes;
  magic[5] = static_cast<char>(magic[5] ^ 1);
  EXPECT_EQ(Opened(magic).file.error().code(), ErrorCode::kUnsupported);
  const std::size_t version = bytes.find("M\xe9\x03");
  ASSERT_NE(version, std::string::npos);
  std::string other = bytes;
  other[version + 1] = static_cast<char>(other[version + 1] ^ 1);
  EXPECT_EQ(Opened(other).file.error().code(), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace cairn::torch_file
