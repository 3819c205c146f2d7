// How a save becomes the model of its directory. Readers differ: transformers takes `model.safetensors`, or else the
// files that `model.safetensors.index.json` names. Cairn takes the files that the index names, or else all files
// `*.safetensors`; of these files Cairn takes one whole set of one save, or fails (checkpointer/safetensors_model.cc).
// torch's reader takes all files `*.safetensors`, and therefore must not read while a save replaces a model.
//
// 1. Claim. Make `.cairn-model-<save id>/` with the lease, *then* list the directory. Under the directory's lock remove
//    the leftovers of dead saves. If the directory has no file of a model, torch's names are free; otherwise names
//    include the save id, and two saves never share a name. Read the index in place.
// 2. Write (data_file/image_writer.cc). New files in the private folder, synced. The header of each file holds the
//    save's id, and says whether an index belongs to the file.
// 3. Publish (rank_files.cc). Rename the files of a set to their final names, never replacing a file; sync the
//    directory. No reader takes these files: the old index does not name the files, and without an index Cairn leaves
//    out files that need an index, if there are other files.
// 4. Seal. Write the new index in the folder; sync the file, the folder and the directory. Under the directory's lock
//    compare the index in place with the index of step 1: a difference means that this save is superseded. Write the
//    list of the files that the commit replaces into the folder.
// 5. Commit.
//    a. A set with an index: rename the index over the index in place. Cairn sees the new model, and transformers too
//       unless there is a `model.safetensors`.
//    b. A single file: first remove an index that names only this file, so that the directory's model is the file
//       itself. Then rename the file. If an index remains, rename the new index, which names the single file, over the
//       index: until then Cairn sees the whole old model, and transformers the whole new model.
//    c. Shards without an index: nothing is renamed; `committed` in the folder says that the files stay. The files'
//       headers hold the number of files: Cairn's reader does not take fewer.
//    Sync the directory.
// 6. Clean. Remove the replaced files, `model.safetensors` first: from then on transformers sees the new model of (a).
//    Sync, and remove the index of (b), which is not needed any more. Remove the folder.
#include "commit/model_transaction.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <utility>

#include "commit/leftovers.h"
#include "commit/rank_files.h"

namespace cairn::commit {
namespace {

using Kind = safetensors::FileSet::Kind;

constexpr std::string_view kSealedName = "/index";

bool is_index(const storage::ListedFile& file) { return file.name == safetensors::kIndexName; }
bool is_model_file(const storage::ListedFile& file) { return !file.is_folder && file.name.ends_with(kModelSuffix); }

bool names_only(const IndexInPlace& index, const std::string& name) {
  const auto& files = index.index.files;
  return index.readable && std::all_of(files.begin(), files.end(), [&](const auto& it) { return it.second == name; });
}

}  // namespace

Result<std::unique_ptr<ModelTransaction>> ModelTransaction::claim(storage::Storage& storage,
                                                                  const SaveIdentity& identity,
                                                                  const ModelClaimOptions& options,
                                                                  Lease::Progress progress) {
  assert(identity.form == SaveForm::kModel);
  CAIRN_TRY(storage::check_name(options.file_name));
  std::unique_ptr<ModelTransaction> transaction(new ModelTransaction(storage, identity, options));
  CAIRN_TRY_ASSIGN(transaction->lease_, Lease::take_with_folder(storage, identity, std::move(progress)));  // (1)
  {
    CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::StorageLock> lock, storage.lock());
    CAIRN_TRY(remove_dead_model_saves(storage, identity.save_id, transaction->warnings_));
  }
  CAIRN_TRY(transaction->look_around());
  return transaction;
}

ModelTransaction::ModelTransaction(storage::Storage& storage, const SaveIdentity& identity,
                                   const ModelClaimOptions& options)
    : storage_(storage), identity_(identity), options_(options), folder_(folder_of_save(identity)) {}

// Whether the save replaces the model of the directory, rather than a file of any name.
bool ModelTransaction::is_of_the_directory() const {
  return options_.kind != Kind::kAlone || options_.file_name == kSingleModelName;
}

Result<void> ModelTransaction::look_around() {
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage_.list());
  fresh_ = !options_.names_taken && std::none_of(files.begin(), files.end(), [this](const storage::ListedFile& file) {
    const bool is_other_save = file.name != folder_ && save_id_of_folder(file.name, SaveForm::kModel).has_value();
    return is_index(file) || is_model_file(file) || is_other_save;
  });
  CAIRN_TRY_ASSIGN(seen_, read_index_in_place(storage_));
  return check_overwrite(files);
}

Result<void> ModelTransaction::check_overwrite(const std::vector<storage::ListedFile>& files) const {
  const bool shards = options_.kind == Kind::kShards;
  if (options_.overwrite && !(shards && !options_.overwrite_with_shards)) return {};
  const auto found = std::find_if(files.begin(), files.end(), [&](const storage::ListedFile& file) {
    if (!is_of_the_directory()) return file.name == options_.file_name;
    return is_index(file) || is_model_file(file);
  });
  if (found == files.end()) return {};
  // DCP's wording, which callers match.
  if (!options_.overwrite)
    return Error(ErrorCode::kInvalidArgument, "Checkpoint already exists and overwrite=False").file(found->name);
  return Error(ErrorCode::kInvalidArgument,
               "the directory holds a model, and shards without an index can't replace a model in one step: save into "
               "a new directory, or consolidate the shards, or allow a time without a whole model")
      .file(found->name);
}

ModelTransaction::~ModelTransaction() {
  if (committed_) return;
  try {
    withdraw();
  } catch (const std::exception&) {
    // Out of memory: the next save removes the leftovers, as after a kill.
  }
}

Result<void> ModelTransaction::sync(Durability durability) {
  if (durability != Durability::kDurable) return {};
  return storage_.sync();
}

// (4)
Result<void> ModelTransaction::write_index(const ModelContent& content, Durability durability) {
  if (options_.kind != Kind::kShards) {
    safetensors::Index index = content.index;
    index.save_id = to_hex(identity_.save_id);
    CAIRN_TRY_ASSIGN(const std::string text, safetensors::render_index(index, content.tensor_bytes));
    CAIRN_TRY(storage_.create_whole(folder_ + std::string(kSealedName), text, durability));
  }
  if (durability == Durability::kDurable) CAIRN_TRY(storage_.sync(folder_));
  return sync(durability);
}

// (5a)
Result<void> ModelTransaction::rename_index() {
  Result<void> renamed = storage_.replace(folder_ + std::string(kSealedName), std::string(safetensors::kIndexName));
  if (renamed) return {};
  // On a network file system a rename may have succeeded although the answer was lost.
  const Result<IndexInPlace> now = read_index_in_place(storage_);
  if (now && now->index.save_id == to_hex(identity_.save_id)) return {};
  if (now) return renamed;
  committed_ = true;  // unknown state: files of a possible model are not withdrawn
  return Error(renamed.error())
      .while_doing("committing; it is unknown which model is in place, so the files of both are kept");
}

// (5b)
Result<void> ModelTransaction::replace_file(const IndexInPlace& old, Durability durability) {
  const bool has_index = is_of_the_directory() && old.present;
  const bool is_needless = has_index && names_only(old, options_.file_name);
  if (is_needless) {
    CAIRN_TRY(storage_.remove(safetensors::kIndexName));
    CAIRN_TRY(sync(durability));
  }
  Result<void> renamed = storage_.replace(folder_ + "/" + options_.file_name, options_.file_name);
  // As in rename_index().
  if (!renamed && !belongs_to(storage_, options_.file_name, identity_.save_id)) return renamed;
  committed_ = true;
  if (!has_index || is_needless) return {};
  CAIRN_TRY(sync(durability));
  return rename_index();
}

Result<void> ModelTransaction::make_visible(const IndexInPlace& old, Durability durability) {
  if (fence_ != nullptr) CAIRN_TRY(fence_->begin_decisive_step());
  switch (options_.kind) {
    case Kind::kIndexed: CAIRN_TRY(rename_index()); break;
    case Kind::kAlone: CAIRN_TRY(replace_file(old, durability)); break;
    case Kind::kShards:  // (5c)
      CAIRN_TRY(storage_.create_whole(folder_ + std::string(kCommittedName), {}, durability));
      break;
  }
  committed_ = true;  // visible from here on: never withdrawn
  if (durability != Durability::kDurable) return {};
  if (auto synced = storage_.sync(); !synced) {
    return std::move(synced).error().while_doing(
        "syncing the directory after the commit: the new model is visible, but a power failure may bring the old model "
        "back; the files of both are kept");
  }
  return {};
}

Result<void> ModelTransaction::commit_under_lock(const ModelContent& content, Durability durability,
                                                 const storage::StorageLock* lock, CommitReport& report) {
  CAIRN_TRY_ASSIGN(const IndexInPlace old, read_index_in_place(storage_));
  if (is_of_the_directory() && !old.same_as(seen_)) {
    return Error(ErrorCode::kSuperseded,
                 "another save committed a model into the directory first; the files of this save are withdrawn")
        .file(safetensors::kIndexName);
  }
  std::vector<std::string> replaced;
  if (is_of_the_directory()) replaced = replaced_model_files(storage_, old, content.files, identity_.save_id);
  if (!replaced.empty()) CAIRN_TRY(write_replaced_list(storage_, folder_, replaced));
  if (lock != nullptr && !lock->is_held()) {
    return Error(ErrorCode::kUnavailable,
                 "the lock of the directory was lost before the commit; the files of this save are withdrawn, save "
                 "again");
  }
  CAIRN_TRY(make_visible(old, durability));  // (5)
  const bool given_up = fence_ != nullptr && !fence_->note_committed();
  const bool excludes_others = lock == nullptr || lock->is_held();
  if (given_up && !excludes_others) return {};              // as if killed here: the next save cleans up
  remove_model_files(storage_, replaced, report.warnings);  // (6)
  const bool is_shards_over_index = options_.kind == Kind::kShards && old.present;
  const bool is_file_over_index = options_.kind == Kind::kAlone && is_of_the_directory() && old.present;
  if (is_shards_over_index || is_file_over_index) {
    if (auto synced = sync(durability); !synced) report.warnings.emplace_back(synced.error().what());
    if (auto removed = storage_.remove(safetensors::kIndexName); !removed)
      report.warnings.emplace_back(removed.error().what());
  }
  return {};
}

Result<CommitReport> ModelTransaction::commit(const ModelContent& content, Durability durability) {
  CAIRN_TRY(write_index(content, durability));
  CommitReport report{std::move(warnings_)};
  {
    CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::StorageLock> lock, storage_.lock());
    CAIRN_TRY(commit_under_lock(content, durability, lock.get(), report));
  }
  lease_.reset();
  remove_private_folder(storage_, folder_, report.warnings);
  return report;
}

void ModelTransaction::withdraw() {
  std::vector<std::string> ignored;  // the error that caused the withdrawal is the error to report
  // The order is that of SaveTransaction::withdraw().
  remove_private_folder(storage_, folder_, ignored, Keep::kLease);
  withdraw_files(storage_, expected_, identity_.save_id);
  lease_.reset();
  remove_private_folder(storage_, folder_, ignored);
  withdraw_files(storage_, expected_, identity_.save_id);
}

}  // namespace cairn::commit
