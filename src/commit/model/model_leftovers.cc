#include "commit/model/model_leftovers.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <sstream>
#include <unordered_set>

#include "commit/model/model_files.h"
#include "commit/private_folder.h"
#include "core/seeded_hash.h"
#include "format/safetensors/header.h"

namespace cairn::commit {
namespace {

using safetensors::FileSet;

bool is_removable(const std::string& name) {
  const bool is_of_model = name.ends_with(kModelSuffix) || name == safetensors::kIndexName;
  return name.find('/') == std::string::npos && storage::check_name(name) && is_of_model;
}

Result<std::vector<StampedFile>> read_replaced_files(const storage::Storage& storage, const std::string& name) {
  std::vector<StampedFile> files;
  const auto text = storage::read_small(storage, name, kReplacedBytesMax);
  if (!text && text.error().error_number() == ENOENT) return files;
  if (!text) return text.error();
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.find(' ');
    if (space != std::string::npos) files.push_back({line.substr(space + 1), line.substr(0, space)});
  }
  return files;
}

bool is_unchanged(const storage::Storage& storage, const StampedFile& file) {
  const Result<std::string> stamp = stamp_of(storage, file.name);
  return stamp && *stamp == file.stamp;
}

// A file of the directory whose header was read.
struct WrittenModelFile {
  std::string name;
  ModelFileOrigin origin;
};

class DeadSave {
 public:
  DeadSave(storage::Storage& storage, const SaveId& save, std::vector<std::string>& warnings)
      : storage_(storage), save_(save), folder_(folder_of(save, SaveForm::kModel)), warnings_(warnings) {}

  Result<void> end(const std::vector<WrittenModelFile>& files, const ModelInPlace& model) {
    CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> contents, storage_.list(folder_));
    const auto has = [&contents](std::string_view name) {
      return std::any_of(contents.begin(), contents.end(), [name](const auto& file) { return file.name == name; });
    };
    if (!has(kLeaseName) && !has(kCommittedName)) {
      // The rest of a folder whose save is unknown, or whose lease was lost in a power cut.
      remove_private_folder(storage_, folder_, warnings_);
      return {};
    }
    if (has(kOneFileName)) return leave();
    read_set(files);
    if (has(kCommittedName)) return is_whole_ ? complete(kCommittedName, model, OldIndex::kGoes) : leave();
    if (model.index.readable && model.index.index.save_id == to_hex(save_)) {
      return complete(kReplacedName, model, OldIndex::kStays);
    }
    if (is_single_file_) return complete_single_file(model, has(kSealedIndexName));
    if (is_whole_ && is_alone(model)) return leave();
    return undo(model);
  }

 private:
  enum class OldIndex : std::uint8_t { kStays, kGoes };

  void read_set(const std::vector<WrittenModelFile>& files) {
    std::optional<FileSet> set;
    std::size_t count = 0;
    const std::string id = to_decimal(save_);
    for (const WrittenModelFile& file : files) {
      const bool is_of_save = file.origin.save_id == save_;
      if (!is_of_save && file.name.find(id) == std::string::npos) continue;
      if (file.name == kSingleModelName) {
        is_single_file_ = true;
        continue;
      }
      names_.push_back(file.name);
      if (!is_of_save) continue;
      ++count;
      if (file.origin.set) set = file.origin.set;
    }
    is_whole_ = set && set->kind == FileSet::Kind::kShards && set->file_count == count;
  }

  bool is_alone(const ModelInPlace& model) const {
    return !model.index.present && std::all_of(model.files.begin(), model.files.end(), [this](const auto& file) {
      return std::find(names_.begin(), names_.end(), file.name) != names_.end();
    });
  }

  Result<void> leave() {
    remove_committed_folder(storage_, folder_, warnings_);
    return {};
  }

  // The files of the list that no index names any more.
  Result<void> remove_list(const std::vector<StampedFile>& files) {
    CAIRN_TRY_ASSIGN(const IndexInPlace index, read_index_in_place(storage_));
    if (index.present && !index.readable) return Error(ErrorCode::kCorrupt, "a damaged index");
    std::vector<StampedFile> unneeded;
    for (const StampedFile& file : files) {
      const bool is_needed = std::any_of(index.index.files.begin(), index.index.files.end(),
                                         [&file](const auto& named) { return named.second == file.name; });
      if (!is_needed && file.name != safetensors::kIndexName) unneeded.push_back(file);
    }
    CAIRN_TRY(remove_replaced_files(storage_, unneeded, warnings_));
    return storage_.sync();
  }

  Result<void> complete(std::string_view list_name, const ModelInPlace& model, OldIndex old_index) {
    CAIRN_TRY_ASSIGN(const std::vector<StampedFile> replaced,
                     read_replaced_files(storage_, folder_ + "/" + std::string(list_name)));
    // A power cut may bring the old model back: the old files are removed only once the commit is on the disk.
    CAIRN_TRY(storage_.sync(folder_));
    CAIRN_TRY(storage_.sync());
    const StampedFile index{std::string(safetensors::kIndexName), model.index_stamp};
    if (old_index == OldIndex::kGoes && std::find(replaced.begin(), replaced.end(), index) != replaced.end()) {
      CAIRN_TRY(storage_.remove(index.name));
      CAIRN_TRY(storage_.sync());
    }
    CAIRN_TRY(remove_list(replaced));
    return leave();
  }

  // A power cut may lose the sealed index without the effect of its rename.
  Result<void> make_index_of_single_file(const std::string& name) {
    const std::string single(kSingleModelName);
    CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::ReadableFile> file, storage_.open(single, false));
    CAIRN_TRY_ASSIGN(const safetensors::Header header, safetensors::read_header(*file));
    safetensors::Index index;
    for (const safetensors::Tensor& tensor : header.tensors) index.files.emplace_back(tensor.name, single);
    const std::uint64_t tensor_bytes = header.tensors.empty() ? 0 : header.tensors.back().end;
    CAIRN_TRY_ASSIGN(const std::string text, safetensors::render_index(index, tensor_bytes));
    return storage_.create_whole(name, text, Durability::kDurable);
  }

  // The index follows the single file, unless another program has changed the index.
  Result<void> complete_single_file(const ModelInPlace& model, bool has_sealed_index) {
    CAIRN_TRY_ASSIGN(const std::vector<StampedFile> replaced,
                     read_replaced_files(storage_, folder_ + "/" + std::string(kReplacedName)));
    const auto listed = std::find_if(replaced.begin(), replaced.end(),
                                     [](const StampedFile& file) { return file.name == safetensors::kIndexName; });
    const bool is_same =
        listed == replaced.end() ? !model.index.present : model.index.present && listed->stamp == model.index_stamp;
    if (is_same) {
      CAIRN_TRY(storage_.sync());
      const std::string sealed = folder_ + "/" + std::string(kSealedIndexName);
      if (!has_sealed_index) CAIRN_TRY(make_index_of_single_file(sealed));
      CAIRN_TRY(storage_.replace(sealed, std::string(safetensors::kIndexName)));
    }
    return complete(kReplacedName, model, OldIndex::kStays);
  }

  Result<void> undo(const ModelInPlace& model) {
    remove_dead_folder(storage_, folder_, SealedFiles::kFirst, warnings_, [&] {
      for (const std::string& name : names_) {
        const bool is_needed = std::any_of(model.index.index.files.begin(), model.index.index.files.end(),
                                           [&name](const auto& named) { return named.second == name; });
        if (is_needed || !is_model_file_name(name)) continue;
        if (auto removed = storage_.remove(name); !removed) warnings_.emplace_back(removed.error().what());
      }
    });
    return {};
  }

  storage::Storage& storage_;
  SaveId save_;
  std::string folder_;
  std::vector<std::string>& warnings_;
  std::vector<std::string> names_;  // of the save's files, except for `model.safetensors`
  bool is_single_file_ = false;     // `model.safetensors` is of the save
  bool is_whole_ = false;           // all shards of the save are there
};

// The headers of the regular files with the name of a model's file, without those whose name has the id of a save other
// than `saves`. A file that is no safetensors file has no origin.
Result<std::vector<WrittenModelFile>> read_headers(const storage::Storage& storage,
                                                   const std::vector<storage::ListedFile>& files,
                                                   const std::vector<SaveId>& saves) {
  std::vector<WrittenModelFile> written;
  for (const storage::ListedFile& file : files) {
    if (!file.is_regular || !is_model_file_name(file.name)) continue;
    const bool is_possible = !names_a_save(file.name) || std::any_of(saves.begin(), saves.end(), [&](const auto& save) {
      return file.name.find(to_decimal(save)) != std::string::npos;
    });
    if (!is_possible) continue;
    Result<ModelFileOrigin> origin = origin_of_model_file(storage, file.name);
    if (!origin && origin.error().code() == ErrorCode::kUnavailable) return origin.error();
    written.push_back({file.name, origin ? *std::move(origin) : ModelFileOrigin()});
  }
  return written;
}

std::string not_cleaned_up(const SaveId& save, const Error& error) {
  return "the files of the dead save " + to_hex(save) + " were left: " + error.what();
}

}  // namespace

std::vector<StampedFile> replaced_model_files(const ModelInPlace& old, const std::vector<std::string>& kept) {
  const std::unordered_set<std::string_view, SeededHash> of_new(kept.begin(), kept.end());
  std::vector<StampedFile> files;
  for (const StampedFile& file : old.files) {
    if (is_removable(file.name) && !of_new.contains(file.name)) files.push_back(file);
  }
  std::stable_partition(files.begin(), files.end(), [](const auto& file) { return file.name == kSingleModelName; });
  return files;
}

std::string encode_replaced_files(const std::vector<StampedFile>& files) {
  std::string text;
  for (const StampedFile& file : files) {
    if (file.name.find('\n') == std::string::npos) text += file.stamp + " " + file.name + "\n";
  }
  return text;
}

Result<void> remove_replaced_files(storage::Storage& storage, const std::vector<StampedFile>& files,
                                   std::vector<std::string>& warnings) {
  for (const StampedFile& file : files) {
    if (!is_removable(file.name) || !is_unchanged(storage, file)) continue;
    Result<void> removed = storage.remove(file.name);
    if (removed) continue;
    if (file.name == kSingleModelName) {
      return std::move(removed).error().while_doing(
          "removing the old `model.safetensors`: the new model is committed, but transformers takes the old file "
          "until it is removed");
    }
    warnings.emplace_back(removed.error().what());
  }
  return {};
}

void remove_committed_folder(storage::Storage& storage, const std::string& folder, std::vector<std::string>& warnings) {
  const auto files = storage.list(folder);
  const auto remove = [&](std::string_view name) {
    const Result<void> removed = storage.remove(folder + "/" + std::string(name));
    if (!removed) warnings.emplace_back(removed.error().what());
    return removed.has_value();
  };
  bool is_marked = false, is_removed = true;
  for (const storage::ListedFile& file : files ? *files : std::vector<storage::ListedFile>()) {
    const bool is_mark = file.name == kCommittedName || file.name == kOneFileName;
    is_marked = is_marked || is_mark;
    if (!is_mark) is_removed = remove(file.name) && is_removed;
  }
  if (is_marked) {
    if (!is_removed || !storage.sync(folder)) return;  // the mark stays
  }
  remove_private_folder(storage, folder, warnings);
}

bool holds_only_mark_of_one_file(const storage::Storage& storage, const std::string& folder) {
  const Result<std::vector<storage::ListedFile>> files = storage.list(folder);
  return files && files->size() == 1 && files->front().name == kOneFileName;
}

namespace {

// Ends the dead saves among `saves`. `mine` is the save of the caller, or zero.
Result<void> end_dead_of(storage::Storage& storage, const std::vector<SaveId>& saves, const SaveId& mine,
                         const StorageClock& clock, std::vector<std::string>& warnings) {
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage.list());
  std::optional<std::vector<WrittenModelFile>> written;
  for (const SaveId& save : saves) {
    const std::string folder = folder_of(save, SaveForm::kModel);
    if (!storage.join_folder(folder)) continue;  // another user's: left to this user's next save
    if (holds_only_mark_of_one_file(storage, folder)) {
      remove_private_folder(storage, folder, warnings);
      continue;
    }
    const Result<bool> dead = is_dead_save(storage, folder, clock);
    if (!dead) warnings.push_back(not_cleaned_up(save, dead.error()));
    if (!dead || !*dead) continue;
    if (!written) {
      CAIRN_TRY_ASSIGN(written, read_headers(storage, files, saves));
    }
    CAIRN_TRY_ASSIGN(const ModelInPlace model, look_at_model(storage, mine, {}));
    if (model.index.present && !model.index.readable) {
      warnings.push_back(not_cleaned_up(save, Error(ErrorCode::kCorrupt,
                                                    "the index is damaged, so the model's files "
                                                    "are unknown")));
      continue;
    }
    const Result<void> ended = DeadSave(storage, save, warnings).end(*written, model);
    if (!ended) warnings.push_back(not_cleaned_up(save, ended.error()));
  }
  return {};
}

}  // namespace

Result<void> end_dead_model_saves(storage::Storage& storage, const SaveId& mine, std::vector<std::string>& warnings) {
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage.list());
  const StorageClock clock(storage, folder_of(mine, SaveForm::kModel) + "/" + std::string(kLeaseName));
  return end_dead_of(storage, model_saves_with_folder(files, mine), mine, clock, warnings);
}

Result<void> end_dead_model_save(storage::Storage& storage, const SaveId& save_id, const StorageClock& clock,
                                 std::vector<std::string>& warnings) {
  return end_dead_of(storage, {save_id}, SaveId(), clock, warnings);
}

}  // namespace cairn::commit
