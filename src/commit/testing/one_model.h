// OneModel: a save of a small safetensors model, step by step, and the model that each reader finds. For tests of the
// commit.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commit/model/model_commit.h"
#include "commit/model/model_files.h"
#include "commit/model/model_in_place.h"
#include "commit/rank_files.h"
#include "commit/testing/dead_lease.h"
#include "commit/testing/one_save.h"
#include "core/checksum.h"
#include "format/safetensors/checksums.h"
#include "format/safetensors/header.h"
#include "format/safetensors/save_order.h"
#include "storage/testing/model_storage.h"

namespace cairn::commit {

using safetensors::FileSet;
using storage::ModelStorage;
using Kind = FileSet::Kind;

inline constexpr std::string_view kIndex = safetensors::kIndexName;

inline SaveIdentity model_save(std::uint64_t number, SaveId job = kJob) {
  SaveIdentity identity = save_number(number, job);
  identity.form = SaveForm::kModel;
  return identity;
}

// A file with the tensor `key` of `elements` zeros: few.
inline std::string file_of(const SaveIdentity& save, const FileSet& set, const std::string& key,
                           std::uint32_t elements = 0) {
  const std::vector<std::byte> zeros(elements * sizeof(float));
  safetensors::Header header;
  header.tensors.push_back({key, DType::kFloat32, Extents{elements}, 0, zeros.size()});
  header.metadata = {{std::string(safetensors::kChecksumsName),
                      safetensors::blank_checksums(safetensors::coverage_of(header.tensors))},
                     {std::string(safetensors::kSaveIdName), to_hex(save.save_id)},
                     {std::string(safetensors::kSaveOrderName), safetensors::render_save_order(order_of_save(save))},
                     {std::string(safetensors::kFileSetName), safetensors::render_file_set(set)}};
  std::string text =
      safetensors::render_header(header, {safetensors::kChecksummedDataAlignment, safetensors::kChecksummedSpacesMin})
          .value();
  const std::vector<std::uint32_t> checksums(zeros.empty() ? 0 : 1, crc32(zeros));
  safetensors::write_checksums(std::as_writable_bytes(std::span(text)), checksums);
  return text + std::string(zeros.size(), '\0');
}

// A file of another program.
inline std::string foreign_file(const std::string& key) {
  safetensors::Header header;
  header.tensors.push_back({key, DType::kFloat32, Extents{0}, 0, 0});
  return safetensors::render_header(header).value();
}

inline void put(ModelStorage& disk, const std::string& name, const std::string& text) {
  ASSERT_TRUE(disk.create_whole(name, text, Durability::kDurable));
}

// A save of two files with an index, of two shards, or of one file.
class OneModel {
 public:
  static Result<OneModel> make(storage::Storage& disk, const SaveIdentity& identity, const ModelClaimOptions& options) {
    OneModel save;
    save.kind_ = options.kind;
    CAIRN_TRY_ASSIGN(save.transaction_, claim_model(disk, identity, options));
    save.files_ = std::make_unique<RankFiles>(disk, identity);
    const FileSet set{options.kind, options.kind == Kind::kAlone ? 1U : 2U};
    for (std::uint32_t i = 1; i <= set.file_count; ++i) {
      std::string name = options.file_name.empty() ? std::string(kSingleModelName) : options.file_name;
      if (set.kind == Kind::kIndexed) name = model_file_name(save.transaction_->ticket(), {i, 2, {}});
      if (set.kind == Kind::kShards) name = model_file_name(save.transaction_->ticket(), {1, 1, i});
      const std::string key = "key" + std::to_string(i);
      CAIRN_TRY_ASSIGN(const std::string private_name, save.files_->private_name(name));
      CAIRN_TRY(disk.create_whole(private_name, file_of(identity, set, key), Durability::kDurable));
      save.content_.files.push_back(name);
      save.content_.index.files.emplace_back(key, name);
    }
    save.transaction_->expect(save.content_.files);
    return save;
  }
  OneModel(storage::Storage& disk, const SaveIdentity& identity) : OneModel(make(disk, identity, {}).value()) {}

  const std::vector<std::string>& names() const { return content_.files; }
  Result<void> publish() {
    if (kind_ == Kind::kAlone) return {};
    return files_->publish(content_.files, Durability::kDurable);
  }
  Result<CommitReport> commit() {
    files_->hand_over();
    return transaction_->commit(content_, Durability::kDurable);
  }

 private:
  OneModel() = default;
  Kind kind_ = Kind::kIndexed;
  std::unique_ptr<SaveTransaction> transaction_;
  std::unique_ptr<RankFiles> files_;
  ModelContent content_;
};

inline Result<std::vector<std::string>> try_model(storage::Storage& disk, std::uint64_t number,
                                                  const ModelClaimOptions& options = {}) {
  CAIRN_TRY_ASSIGN(OneModel save, OneModel::make(disk, model_save(number), options));
  CAIRN_TRY(save.publish());
  CAIRN_TRY(save.commit());
  return save.names();
}

inline std::vector<std::string> save_model(storage::Storage& disk, std::uint64_t number,
                                           const ModelClaimOptions& options = {}) {
  const auto saved = try_model(disk, number, options);
  EXPECT_TRUE(saved) << saved.error().what();
  return saved ? *saved : std::vector<std::string>{"", ""};
}

inline std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return names;
}

inline ModelClaimOptions of_kind(Kind kind) {
  ModelClaimOptions options;
  options.kind = kind;
  options.overwrite_with_shards = true;
  return options;
}

// The single save of `names`; nullopt for files of several saves, and for a file without a save.
inline std::optional<std::uint64_t> save_of(const ModelStorage& disk, const std::vector<std::string>& names) {
  std::optional<SaveId> save;
  for (const std::string& name : names) {
    const auto origin = origin_of_model_file(disk, name);
    if (!origin || !origin->save_id || (save && *save != *origin->save_id)) return std::nullopt;
    save = origin->save_id;
  }
  return save ? std::optional(save->low) : std::nullopt;
}

// The save whose whole model Cairn finds (checkpoint/safetensors_model.cc).
inline std::optional<std::uint64_t> model_of_cairn(const ModelStorage& disk) {
  const IndexInPlace index = read_index_in_place(disk).value();
  std::vector<std::string> names;
  if (index.present) {
    for (const auto& [key, name] : index.index.files) names.push_back(name);
    const auto save = index.readable ? save_of(disk, names) : std::nullopt;
    const std::string& id = index.index.save_id;
    return save && (id.empty() || id == to_hex(model_save(*save).save_id)) ? save : std::nullopt;
  }
  std::optional<FileSet> set;
  for (const std::string& name : names_in(disk)) {
    const auto origin = name.ends_with(kModelSuffix) ? origin_of_model_file(disk, name) : ModelFileOrigin();
    if (!name.ends_with(kModelSuffix) || (origin && origin->set && origin->set->kind == Kind::kIndexed)) continue;
    if (!origin || !origin->set || (set && !(*set == *origin->set))) return std::nullopt;
    set = origin->set;
    names.push_back(name);
  }
  return set && names.size() == set->file_count ? save_of(disk, names) : std::nullopt;
}

inline std::optional<std::uint64_t> model_of_transformers(const ModelStorage& disk) {
  return holds(disk, "model.safetensors") ? save_of(disk, {"model.safetensors"}) : model_of_cairn(disk);
}

// Whether all files of the save are there.
inline bool is_whole(const ModelStorage& disk, std::uint64_t number, Kind kind) {
  std::size_t count = 0;
  for (const std::string& name : names_in(disk)) {
    const auto origin = name.ends_with(kModelSuffix) ? origin_of_model_file(disk, name) : ModelFileOrigin();
    count += origin && origin->save_id == model_save(number).save_id;
  }
  const IndexInPlace index = read_index_in_place(disk).value();
  const bool has_index = index.readable && index.index.save_id == to_hex(model_save(number).save_id);
  return count == (kind == Kind::kAlone ? 1 : 2) && (kind != Kind::kIndexed || has_index);
}

// Makes all saves in the directory look killed. False if a power cut has left a folder without its lease: the next save
// then does not recognise the leftovers.
inline bool kill_saves(ModelStorage& disk) {
  for (const std::string& name : names_in(disk)) {
    if (!save_id_of_folder(name, SaveForm::kModel)) continue;
    if (!disk.open(name + "/lease", false)) return false;
    leave_dead_lease(disk, name);
  }
  return true;
}

}  // namespace cairn::commit
