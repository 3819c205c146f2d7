// The parts of the commit (save_transaction.cc) in which a safetensors model differs. Readers differ: transformers
// takes `model.safetensors`, or else the files that `model.safetensors.index.json` names. Cairn takes the files that
// the index names, or else all files `*.safetensors`; of these files Cairn takes one whole set of one save, or fails
// (checkpoint/safetensors_model.cc). torch's reader takes all files `*.safetensors`, and therefore must not read while
// a save replaces a model.
//
// 1. Look. The private folder is `.cairn-model-<save id>/`; for shards sync the folder and the directory, so that no
//    power cut leaves a shard whose save cannot be recognised. Under the directory's lock end the dead saves
//    (model_leftovers.h), *then* look at the model in place: at the index and at all files of the model, except for the
//    files of saves in flight (model_in_place.h). Refuse a DCP checkpoint: Cairn's readers would still take it. Refuse
//    a model of links, as in the cache of Hugging Face Hub: Cairn does not remove links. Refuse shards beside
//    `*.safetensors` files of other programs: a reader without an index would take those files too.
// 2. The header of each file holds the save's id, and says whether an index belongs to the file.
// 3. Publish the files of a set. The old index does not name the files, and without an index Cairn leaves out files
//    that need an index. A single file is not published.
// 4. Seal: `index` in the folder. A save that concerns one file (ModelClaimOptions::file_name) has a mark instead: it
//    says to later saves that nothing else belongs to the commit.
// 5. a. Compare the model in place with the model of step 1. The headers of the files of earlier saves name the job and
//       the save's number in the job. The files of step 3 must still be there. The list of the replaced files holds a
//       stamp of each.
//    b. A set with an index: rename the index over the index in place. Cairn sees the new model, and transformers too
//       unless there is a `model.safetensors`.
//       A single file: rename the file. For a save that concerns one file this is all. For the model of the directory:
//       if there is an index, or a `*.safetensors` file of another program, sync, and rename the new index, which names
//       the single file, over the index: until then Cairn sees the whole old model, and transformers the whole new
//       model. This index lacks the save's id: the next single file, which replaces the file first, fits the index if
//       the model has the same tensors; if not, Cairn refuses the model until the rename of the index.
//       Shards without an index: create `committed` in the folder, with the list of (a); sync the file and the folder.
//       From here on a later save completes the commit. Then remove the old index: the files' headers hold the number
//       of files, and Cairn's reader takes only a whole set that is alone.
// 7. Clean. Remove the replaced files whose stamp is that of the list, `model.safetensors` first: from then on
//    transformers sees the new model of a set. Sync, and remove the index beside a single file if no other file needs
//    it. Without the lock nothing is removed unless the save is still in place, and the folder then stays for the next
//    save.
#include "commit/model/model_commit.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "commit/bucket/bucket_commit.h"
#include "commit/dcp_names.h"
#include "commit/model/model_files.h"
#include "commit/model/model_in_place.h"
#include "commit/model/model_leftovers.h"
#include "core/checksum.h"
#include "core/seeded_hash.h"

namespace cairn::commit {
namespace {

using Kind = safetensors::FileSet::Kind;

// Of ModelClaimOptions.
Result<void> check_file_name(const std::string& name) {
  if (name.empty()) return {};
  CAIRN_TRY(storage::check_name(name));
  const bool is_of_several = is_dcp_file_name(name) || name == safetensors::kIndexName ||
                             (name != kSingleModelName && is_model_file_name(name));
  if (!is_of_several && !name.starts_with(kFolderPrefix)) return {};
  return Error(ErrorCode::kInvalidArgument,
               "a single file must not have the name of a file of several: choose another name, or a directory")
      .file(name);
}

std::string joined(const std::vector<StampedFile>& files) {
  constexpr std::size_t kNamedMax = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(files.size(), kNamedMax); ++i) text += (i == 0 ? "" : ", ") + files[i].name;
  return files.size() > kNamedMax ? text + ", ..." : text;
}

class ModelCommit final : public CommitStrategy {
 public:
  ModelCommit(storage::Storage& storage, const SaveIdentity& identity, const ModelClaimOptions& options)
      : CommitStrategy(storage, identity),
        options_(options),
        is_of_the_directory_(options.kind != Kind::kAlone || options.file_name.empty()) {
    if (is_of_the_directory_) options_.file_name = kSingleModelName;
  }

  Result<bool> look(Warnings& warnings) override {
    if (options_.kind == Kind::kShards) {
      CAIRN_TRY(storage_.sync(folder_));
      CAIRN_TRY(storage_.sync());
    }
    CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::StorageLock> lock, storage_.lock());
    CAIRN_TRY(end_dead_model_saves(storage_, identity_.save_id, warnings));
    CAIRN_TRY_ASSIGN(seen_, look_at_model_in_place());
    CAIRN_TRY(check_overwrite(seen_));
    return !options_.names_taken && !seen_.index.present && seen_.files.empty() && seen_.foreign.empty() &&
           !seen_.has_other_saves;
  }

  bool publishes() const override { return options_.kind != Kind::kAlone; }

  Result<std::vector<FolderFile>> sealed_files(const CommitContent& content) override {
    std::vector<FolderFile> files;
    if (options_.kind == Kind::kShards) return files;
    if (!is_of_the_directory_) {
      files.push_back({kOneFileName, ""});
      return files;
    }
    CAIRN_TRY_ASSIGN(std::string index, content.render());
    index_size_ = index.size();
    index_checksum_ = crc32(std::as_bytes(std::span(index)));
    files.push_back({kSealedIndexName, std::move(index)});
    return files;
  }

  Result<std::optional<ReplacedList>> look_again(const CommitContent& content) override {
    CAIRN_TRY_ASSIGN(old_, look_at_model_in_place());
    if (is_of_the_directory_) CAIRN_TRY(check_not_superseded(old_));
    CAIRN_TRY(check_overwrite(old_));
    if (publishes()) CAIRN_TRY(check_published(content.files));  // (5a)
    if (!is_of_the_directory_) return std::optional<ReplacedList>();
    replaced_ = replaced_model_files(old_, content.files);
    std::vector<StampedFile> listed = replaced_;
    if (old_.index.present) listed.insert(listed.begin(), {std::string(safetensors::kIndexName), old_.index_stamp});
    list_ = encode_replaced_files(listed);
    if (options_.kind == Kind::kShards || listed.empty()) return std::optional<ReplacedList>();
    return std::optional(ReplacedList{list_});
  }

  Result<void> make_visible(Durability durability, bool& may_be_visible) override {
    switch (options_.kind) {
      case Kind::kIndexed: return rename_index(may_be_visible);
      case Kind::kAlone: return replace_file(durability, may_be_visible);
      case Kind::kShards: return mark_committed(durability, may_be_visible);
    }
    return {};
  }

  bool may_clean_unlocked(bool is_given_up) const override {
    return !is_of_the_directory_ || (!is_given_up && is_in_place());
  }

  Result<void> clean(LockState /*lock*/, Durability durability, Warnings& warnings) override {
    if (!is_of_the_directory_) return {};
    CAIRN_TRY(remove_replaced_files(storage_, replaced_, warnings));
    if (!replaced_.empty()) CAIRN_TRY(sync("", durability));
    const bool has_needless_index = options_.kind == Kind::kAlone && old_.index.present && old_.foreign.empty();
    if (!has_needless_index) return {};
    if (auto removed = remove_index(durability); !removed) warnings.emplace_back(removed.error().what());
    return {};
  }

  void remove_folder(Warnings& warnings) override { remove_committed_folder(storage_, folder_, warnings); }

 private:
  Result<ModelInPlace> look_at_model_in_place() const {
    return look_at_model(storage_, identity_.save_id, is_of_the_directory_ ? std::string() : options_.file_name);
  }

  Result<void> check_overwrite(const ModelInPlace& now) const {
    if (!is_of_the_directory_) return check_one_file(now);
    if (!now.dcp_file.empty()) {
      return Error(ErrorCode::kInvalidArgument,
                   "the directory holds files of a DCP checkpoint, and Cairn would still open the checkpoint: choose a "
                   "new directory")
          .file(now.dcp_file);
    }
    const bool shards = options_.kind == Kind::kShards;
    std::string found = now.index.present ? std::string(safetensors::kIndexName) : std::string();
    if (found.empty() && !now.foreign.empty()) found = now.foreign.front();
    if (found.empty() && !now.files.empty()) found = now.files.front().name;
    if (found.empty()) return {};
    // DCP's wording, which callers match.
    if (!options_.overwrite)
      return Error(ErrorCode::kInvalidArgument, "Checkpoint already exists and overwrite=False").file(found);
    if (shards && !options_.overwrite_with_shards) {
      return Error(ErrorCode::kInvalidArgument,
                   "the directory holds a model, and shards without an index can't replace a model in one step: save "
                   "into a new directory, or consolidate the shards")
          .file(found);
    }
    if (shards && !now.foreign.empty()) {
      return Error(ErrorCode::kInvalidArgument,
                   "a reader without an index would take the file of another program for a part of the model: save "
                   "into a new directory, or consolidate the shards")
          .file(now.foreign.front());
    }
    return check_regular(now);
  }

  // Of a save that concerns one file.
  Result<void> check_one_file(const ModelInPlace& now) const {
    for (const auto& [key, file] : now.index.index.files) {
      if (file != options_.file_name) continue;
      return Error(ErrorCode::kInvalidArgument, "the file belongs to the model of the directory: choose another name")
          .file(file);
    }
    std::vector<StampedFile> others = now.files;
    const bool exists = std::erase_if(others, [this](const auto& file) { return file.name == options_.file_name; }) > 0;
    if (now.index.present) others.push_back({std::string(safetensors::kIndexName), now.index_stamp});
    if (options_.file_name == kSingleModelName && !others.empty()) {
      return Error(ErrorCode::kInvalidArgument,
                   "the directory holds a model of several files, and programs differ in which of two models they "
                   "take: choose another name, or make the directory the target, which replaces the model")
          .file(options_.file_name)
          .actual(joined(others));
    }
    if (options_.overwrite || !exists) return {};
    return Error(ErrorCode::kInvalidArgument, "Checkpoint already exists and overwrite=False").file(options_.file_name);
  }

  Result<void> check_regular(const ModelInPlace& now) const {
    const auto link =
        std::find_if(now.files.begin(), now.files.end(), [](const auto& file) { return file.stamp.empty(); });
    const bool is_index = now.index.present && now.index_stamp.empty();
    if (!is_index && link == now.files.end()) return {};
    return Error(ErrorCode::kInvalidArgument,
                 "the directory's model consists of links, as in the cache of Hugging Face Hub, and can't be replaced "
                 "in one step: save into a new directory")
        .file(is_index ? safetensors::kIndexName : std::string_view(link->name));
  }

  // (5a)
  Result<void> check_not_superseded(const ModelInPlace& now) const {
    if (now.same_as(seen_)) return {};
    CAIRN_TRY_ASSIGN(const bool by_earlier_saves, has_changed_by_earlier_saves(now));
    if (by_earlier_saves) return {};
    return Error(ErrorCode::kSuperseded,
                 "another save or program has changed the directory's model since this save began; the files of this "
                 "save are withdrawn")
        .file(safetensors::kIndexName);
  }

  // Whether each file that has appeared or changed since step 1 belongs to an earlier save of this job, and the index,
  // if changed, names only such files. A change that only removes files is not the work of a save.
  Result<bool> has_changed_by_earlier_saves(const ModelInPlace& now) const {
    std::unordered_map<std::string_view, std::string_view, SeededHash> stamps;
    for (const StampedFile& file : seen_.files) stamps.emplace(file.name, file.stamp);
    std::unordered_set<std::string_view, SeededHash> changed;
    for (const StampedFile& file : now.files) {
      const auto seen = stamps.find(file.name);
      if (seen != stamps.end() && seen->second == file.stamp) continue;
      const Result<ModelFileOrigin> origin = origin_of_model_file(storage_, file.name);
      if (!origin && origin.error().code() == ErrorCode::kUnavailable) return origin.error();
      const std::optional<SaveId> job = origin && origin->order ? save_id_of_hex(origin->order->job_id) : std::nullopt;
      if (!job || !is_earlier_save(*job, origin->order->save_number)) return false;
      changed.insert(file.name);
    }
    if (changed.empty()) return false;
    if (!now.index.present || now.index.same_as(seen_.index)) return true;
    return now.index.readable && std::all_of(now.index.index.files.begin(), now.index.index.files.end(),
                                             [&](const auto& named) { return changed.contains(named.second); });
  }

  // (5b)
  Result<void> rename_index(bool& may_be_visible) {
    const auto has_moved = [this]() -> Result<bool> {
      CAIRN_TRY_ASSIGN(const IndexInPlace now, read_index_in_place(storage_));
      return now.present && now.size == index_size_ && now.checksum == index_checksum_;
    };
    return move_into_place(kSealedIndexName, std::string(safetensors::kIndexName), may_be_visible,
                           "which model is in place, so the files of both are kept", has_moved);
  }

  // (5b)
  Result<void> replace_file(Durability durability, bool& may_be_visible) {
    const auto has_moved = [this]() -> Result<bool> {
      if (is_in_place()) return true;
      // The private name may be gone without a rename: a cleaner may have taken this save for dead.
      CAIRN_TRY(storage_.open(in_folder(options_.file_name), false));
      return false;
    };
    CAIRN_TRY(move_into_place(options_.file_name, options_.file_name, may_be_visible,
                              "whether the new file is in place", has_moved));
    may_be_visible = true;
    const bool needs_index = is_of_the_directory_ && (old_.index.present || !old_.foreign.empty());
    if (!needs_index) return {};
    CAIRN_TRY(sync("", durability));
    return rename_index(may_be_visible);
  }

  // (5b)
  Result<void> mark_committed(Durability durability, bool& may_be_visible) {
    const std::string mark = in_folder(kCommittedName);
    Result<void> marked = storage_.create_whole(mark, list_, durability);
    may_be_visible = true;  // also if the answer was lost
    if (!marked) {
      const auto found = storage_.open(mark, false);
      may_be_visible = found || found.error().error_number() != ENOENT;
      if (!may_be_visible) return marked;
      return std::move(marked).error().while_doing("committing; it is unknown whether the shards are committed");
    }
    CAIRN_TRY(sync(folder_, durability));
    if (old_.index.present) CAIRN_TRY(remove_index(durability));
    return {};
  }

  Result<void> remove_index(Durability durability) {
    CAIRN_TRY(storage_.remove(safetensors::kIndexName));
    return sync("", durability);
  }

  // Whether the commit of this save is the directory's last.
  bool is_in_place() const {
    if (options_.kind == Kind::kShards) return true;  // a later save removes only what it saw
    if (options_.kind == Kind::kAlone) {
      const Result<ModelFileOrigin> origin = origin_of_model_file(storage_, options_.file_name);
      return origin && origin->save_id == identity_.save_id;
    }
    const Result<IndexInPlace> index = read_index_in_place(storage_);
    return index && index->index.save_id == to_hex(identity_.save_id);
  }

  ModelClaimOptions options_;
  const bool is_of_the_directory_;  // whether the save replaces the model of the directory, rather than one file
  ModelInPlace seen_;
  std::uint64_t index_size_ = 0;  // of the sealed index, as index_checksum_
  std::uint32_t index_checksum_ = 0;
  ModelInPlace old_;                   // what the commit replaces
  std::vector<StampedFile> replaced_;  // of `old_`, without the index
  std::string list_;                   // of `replaced_` and the index
};

}  // namespace

Result<std::unique_ptr<SaveTransaction>> claim_model(storage::Storage& storage, const SaveIdentity& identity,
                                                     const ModelClaimOptions& options, Lease::Progress progress) {
  CAIRN_TRY(refuse_in_bucket(storage, "a safetensors model"));
  assert(identity.form == SaveForm::kModel);
  CAIRN_TRY(check_file_name(options.file_name));
  return SaveTransaction::claim(std::make_unique<ModelCommit>(storage, identity, options), std::move(progress));
}

}  // namespace cairn::commit
