// How a save becomes the model of its directory. Readers differ: transformers takes `model.safetensors`, or else the
// files that `model.safetensors.index.json` names. Cairn takes the files that the index names, or else all files
// `*.safetensors`; of these files Cairn takes one whole set of one save, or fails (checkpoint/safetensors_model.cc).
// torch's reader takes all files `*.safetensors`, and therefore must not read while a save replaces a model.
//
// 1. Claim. Make `.cairn-model-<save id>/` with the lease; for shards sync both, so that no power cut leaves a shard
//    whose save cannot be recognised. Under the directory's lock end the dead saves
//    (model_leftovers.h), *then* look at the model in place: at the index and at all files of the model, except for the
//    files of saves in flight (model_in_place.h). Refuse a DCP checkpoint: Cairn's readers would still take it. If the
//    directory has no file of a model, torch's names are free; otherwise names include the save id, and two saves never
//    share a name. Refuse a model of links, as in the cache of Hugging Face Hub: Cairn does not remove links. Refuse
//    shards beside `*.safetensors` files of other programs: a reader without an index would take those files too.
// 2. Write (data_file/image_writer.cc). New files in the private folder, synced. The header of each file holds the
//    save's id, and says whether an index belongs to the file.
// 3. Publish (rank_files.cc). Rename the files of a set to their final names, never replacing a file; sync the
//    directory. No reader takes these files: the old index does not name the files, and without an index Cairn leaves
//    out files that need an index. A single file is not published.
// 4. Seal. Write the new index in the folder; sync the file, the folder and the directory. Under the directory's lock
//    look again at the model in place. Earlier saves of this job may have committed since step 1: the files' headers
//    name the job and the save's number in the job. Any other difference to step 1 means that this save is superseded.
//    The files of step 3 must still be there. Write the list of the files that the commit replaces, with a stamp of
//    each, into the folder.
// 5. Commit.
//    a. A set with an index: rename the index over the index in place. Cairn sees the new model, and transformers too
//       unless there is a `model.safetensors`.
//    b. A single file: rename the file. For a save that concerns one file (ModelClaimOptions::file_name) this is all: a
//       mark in the folder says so to later saves. For the model of the directory: if there is an index, or a
//       `*.safetensors` file of another program, sync, and rename the new index, which names the single file, over the
//       index: until then Cairn sees the whole old model, and transformers the whole new model. This index lacks the
//       save's id: the next single file, which replaces the file first, fits the index if the model has the same
//       tensors; if not, Cairn refuses the model until the rename of the index.
//    c. Shards without an index: create `committed` in the folder, with the list of step 4; sync the file and the
//       folder. From here on a later save completes the commit. Then remove the old index: the files' headers hold the
//       number of files, and Cairn's reader takes only a whole set that is alone.
//    Sync the directory. If this fails, or the answer of 5 was lost, the files of both models stay.
// 6. Clean. Remove the replaced files whose stamp is that of the list, `model.safetensors` first: from then on
//    transformers sees the new model of (a). Sync, and remove the index of (b) if no other file needs it. Remove the
//    folder. Without the lock nothing is removed unless the save is still in place, and the folder then stays for the
//    next save.
#include "commit/model_transaction.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <exception>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "commit/dcp_names.h"
#include "commit/leftovers.h"
#include "commit/model_leftovers.h"
#include "commit/rank_files.h"
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

}  // namespace

Result<std::unique_ptr<ModelTransaction>> ModelTransaction::claim(storage::Storage& storage,
                                                                  const SaveIdentity& identity,
                                                                  const ModelClaimOptions& options,
                                                                  Lease::Progress progress) {
  assert(identity.form == SaveForm::kModel);
  CAIRN_TRY(check_file_name(options.file_name));
  std::unique_ptr<ModelTransaction> transaction(new ModelTransaction(storage, identity, options));
  CAIRN_TRY_ASSIGN(transaction->lease_, Lease::take_with_folder(storage, identity, std::move(progress)));  // (1)
  if (options.kind == Kind::kShards) {
    CAIRN_TRY(storage.sync(folder_of_save(identity)));
    CAIRN_TRY(storage.sync());
  }
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::StorageLock> lock, storage.lock());
  CAIRN_TRY(end_dead_model_saves(storage, identity.save_id, transaction->warnings_));
  CAIRN_TRY(transaction->look_around());
  return transaction;
}

ModelTransaction::ModelTransaction(storage::Storage& storage, const SaveIdentity& identity,
                                   const ModelClaimOptions& options)
    : storage_(storage),
      identity_(identity),
      options_(options),
      is_of_the_directory_(options.kind != Kind::kAlone || options.file_name.empty()),
      folder_(folder_of_save(identity) + "/") {
  if (is_of_the_directory_) options_.file_name = kSingleModelName;
}

Result<ModelInPlace> ModelTransaction::look() const {
  return look_at_model(storage_, identity_.save_id, is_of_the_directory_ ? std::string() : options_.file_name);
}

Result<void> ModelTransaction::look_around() {
  CAIRN_TRY_ASSIGN(seen_, look());
  fresh_ = !options_.names_taken && !seen_.index.present && seen_.files.empty() && seen_.foreign.empty() &&
           !seen_.has_other_saves;
  return check_overwrite(seen_);
}

Result<void> ModelTransaction::check_overwrite(const ModelInPlace& now) const {
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
                 "a reader without an index would take the file of another program for a part of the model: save into "
                 "a new directory, or consolidate the shards")
        .file(now.foreign.front());
  }
  return check_regular(now);
}

// Of a save that concerns one file.
Result<void> ModelTransaction::check_one_file(const ModelInPlace& now) const {
  for (const auto& [key, file] : now.index.index.files) {
    if (file != options_.file_name) continue;
    return Error(ErrorCode::kInvalidArgument, "the file belongs to the model of the directory: choose another name")
        .file(file);
  }
  std::vector<StampedFile> others = now.files;
  std::erase_if(others, [this](const StampedFile& file) { return file.name == options_.file_name; });
  if (now.index.present) others.push_back({std::string(safetensors::kIndexName), now.index_stamp});
  if (options_.file_name == kSingleModelName && !others.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "the directory holds a model of several files, and programs differ in which of two models they take: "
                 "choose another name, or make the directory the target, which replaces the model")
        .file(options_.file_name)
        .actual(joined(others));
  }
  const bool exists = std::any_of(now.files.begin(), now.files.end(),
                                  [this](const StampedFile& file) { return file.name == options_.file_name; });
  if (options_.overwrite || !exists) return {};
  return Error(ErrorCode::kInvalidArgument, "Checkpoint already exists and overwrite=False").file(options_.file_name);
}

Result<void> ModelTransaction::check_regular(const ModelInPlace& now) const {
  const auto link =
      std::find_if(now.files.begin(), now.files.end(), [](const auto& file) { return file.stamp.empty(); });
  const bool is_index = now.index.present && now.index_stamp.empty();
  if (!is_index && link == now.files.end()) return {};
  return Error(ErrorCode::kInvalidArgument,
               "the directory's model consists of links, as in the cache of Hugging Face Hub, and can't be replaced in "
               "one step: save into a new directory")
      .file(is_index ? safetensors::kIndexName : std::string_view(link->name));
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
  const bool has_index = options_.kind == Kind::kIndexed || (options_.kind == Kind::kAlone && is_of_the_directory_);
  if (has_index) {
    safetensors::Index index = content.index;
    if (options_.kind == Kind::kIndexed) index.save_id = to_hex(identity_.save_id);
    CAIRN_TRY_ASSIGN(const std::string text, safetensors::render_index(index, content.tensor_bytes));
    index_size_ = text.size();
    index_checksum_ = crc32(std::as_bytes(std::span(text)));
    CAIRN_TRY(storage_.create_whole(folder_ + std::string(kSealedIndexName), text, durability));
  }
  if (!is_of_the_directory_) CAIRN_TRY(storage_.create_whole(folder_ + std::string(kOneFileName), "", durability));
  if (durability == Durability::kDurable) CAIRN_TRY(storage_.sync(folder_of_save(identity_)));
  return sync(durability);
}

// (4)
Result<void> ModelTransaction::write_replaced(const ModelInPlace& old, const std::vector<StampedFile>& replaced,
                                              Durability durability) {
  std::vector<StampedFile> files;
  if (old.index.present) files.push_back({std::string(safetensors::kIndexName), old.index_stamp});
  files.insert(files.end(), replaced.begin(), replaced.end());
  CAIRN_TRY(storage_.create_whole(folder_ + std::string(kReplacedModelName), encode_replaced_files(files), durability));
  return durability == Durability::kDurable ? storage_.sync(folder_of_save(identity_)) : Result<void>();
}

// (5a)
Result<void> ModelTransaction::rename_index() {
  Result<void> renamed =
      storage_.replace(folder_ + std::string(kSealedIndexName), std::string(safetensors::kIndexName));
  if (renamed) return {};
  // On a network file system a rename may have succeeded although the answer was lost.
  const Result<IndexInPlace> now = read_index_in_place(storage_);
  if (now && now->present && now->size == index_size_ && now->checksum == index_checksum_) return {};
  if (now) return renamed;
  committed_ = true;  // unknown state: files of a possible model are not withdrawn
  return Error(renamed.error())
      .while_doing("committing; it is unknown which model is in place, so the files of both are kept");
}

// (5b)
Result<void> ModelTransaction::rename_file() {
  const std::string private_name = folder_ + options_.file_name;
  Result<void> renamed = storage_.replace(private_name, options_.file_name);
  // As in rename_index(). The private name may be gone without a rename: a cleaner may have taken this save for dead.
  if (!renamed && !is_in_place()) {
    if (storage_.open(private_name, false)) return renamed;
    committed_ = true;
    return Error(renamed.error()).while_doing("committing; it is unknown whether the new file is in place");
  }
  committed_ = true;
  return {};
}

// (5b)
Result<void> ModelTransaction::replace_file(const ModelInPlace& old, Durability durability) {
  CAIRN_TRY(rename_file());
  const bool needs_index = is_of_the_directory_ && (old.index.present || !old.foreign.empty());
  if (!needs_index) return {};
  CAIRN_TRY(sync(durability));
  return rename_index();
}

// (5c)
Result<void> ModelTransaction::mark_committed(const ModelInPlace& old, const std::vector<StampedFile>& replaced,
                                              Durability durability) {
  std::vector<StampedFile> files = replaced;
  if (old.index.present) files.insert(files.begin(), {std::string(safetensors::kIndexName), old.index_stamp});
  const std::string mark = folder_ + std::string(kCommittedName);
  Result<void> marked = storage_.create_whole(mark, encode_replaced_files(files), durability);
  if (!marked) {
    const auto found = storage_.open(mark, false);
    if (!found && found.error().error_number() == ENOENT) return marked;
    committed_ = true;  // unknown state
    return std::move(marked).error().while_doing("committing; it is unknown whether the shards are committed");
  }
  committed_ = true;
  if (durability == Durability::kDurable) CAIRN_TRY(storage_.sync(folder_of_save(identity_)));
  if (old.index.present) CAIRN_TRY(remove_index(durability));
  return {};
}

Result<void> ModelTransaction::remove_index(Durability durability) {
  CAIRN_TRY(storage_.remove(safetensors::kIndexName));
  return sync(durability);
}

// (5)
Result<void> ModelTransaction::make_visible(const ModelInPlace& old, const std::vector<StampedFile>& replaced,
                                            Durability durability) {
  if (fence_ != nullptr) CAIRN_TRY(fence_->begin_decisive_step());
  switch (options_.kind) {
    case Kind::kIndexed: CAIRN_TRY(rename_index()); break;
    case Kind::kAlone: CAIRN_TRY(replace_file(old, durability)); break;
    case Kind::kShards: CAIRN_TRY(mark_committed(old, replaced, durability)); break;
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

// Whether the commit of this save is the directory's last.
bool ModelTransaction::is_in_place() const {
  if (options_.kind == Kind::kShards) return true;  // a later save removes only what it saw
  if (options_.kind == Kind::kAlone) {
    const Result<ModelFileOrigin> origin = origin_of_model_file(storage_, options_.file_name);
    return origin && origin->save_id == identity_.save_id;
  }
  const Result<IndexInPlace> index = read_index_in_place(storage_);
  return index && index->index.save_id == to_hex(identity_.save_id);
}

// A cleaner that took this save for dead may have removed the files.
Result<void> ModelTransaction::check_published(const ModelContent& content) const {
  if (options_.kind == Kind::kAlone) return {};
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage_.list());
  std::unordered_set<std::string_view> names;
  for (const storage::ListedFile& file : files) names.insert(file.name);
  for (const std::string& name : content.files) {
    if (names.contains(name)) continue;
    return Error(ErrorCode::kUnavailable,
                 "a file of this save was removed before the commit: the save was silent for so long that another save "
                 "took it for dead, save again")
        .file(name);
  }
  return {};
}

Result<void> ModelTransaction::check_not_superseded(const ModelInPlace& now) const {
  if (now.same_as(seen_)) return {};
  CAIRN_TRY_ASSIGN(const bool by_earlier_saves, has_changed_by_earlier_saves(now));
  if (by_earlier_saves) return {};
  return Error(ErrorCode::kSuperseded,
               "another save or program has changed the directory's model since this save began; the files of this "
               "save are withdrawn")
      .file(safetensors::kIndexName);
}

// Whether each file that has appeared or changed since step 1 belongs to an earlier save of this job, and the index, if
// changed, names only such files. A change that only removes files is not the work of a save.
Result<bool> ModelTransaction::has_changed_by_earlier_saves(const ModelInPlace& now) const {
  std::unordered_map<std::string_view, std::string_view, SeededHash> stamps;
  for (const StampedFile& file : seen_.files) stamps.emplace(file.name, file.stamp);
  std::unordered_set<std::string_view, SeededHash> changed;
  for (const StampedFile& file : now.files) {
    const auto seen = stamps.find(file.name);
    if (seen != stamps.end() && seen->second == file.stamp) continue;
    const Result<ModelFileOrigin> origin = origin_of_model_file(storage_, file.name);
    if (!origin && origin.error().code() == ErrorCode::kUnavailable) return origin.error();
    const bool is_earlier = origin && origin->order && origin->order->job_id == to_hex(identity_.job_id) &&
                            origin->order->save_number < identity_.save_number;
    if (!is_earlier) return false;
    changed.insert(file.name);
  }
  if (changed.empty()) return false;
  if (!now.index.present || now.index.same_as(seen_.index)) return true;
  return now.index.readable && std::all_of(now.index.index.files.begin(), now.index.index.files.end(),
                                           [&](const auto& named) { return changed.contains(named.second); });
}

Result<bool> ModelTransaction::commit_under_lock(const ModelContent& content, Durability durability,
                                                 const storage::StorageLock* lock, CommitReport& report) {
  CAIRN_TRY_ASSIGN(const ModelInPlace old, look());
  if (is_of_the_directory_) CAIRN_TRY(check_not_superseded(old));
  CAIRN_TRY(check_overwrite(old));
  CAIRN_TRY(check_published(content));
  std::vector<StampedFile> replaced;
  if (is_of_the_directory_) replaced = replaced_model_files(old, content.files);
  const bool has_list = is_of_the_directory_ && options_.kind != Kind::kShards;
  if (has_list && (old.index.present || !replaced.empty())) CAIRN_TRY(write_replaced(old, replaced, durability));
  if (lock != nullptr && !lock->is_held()) {
    return Error(ErrorCode::kUnavailable,
                 "the lock of the directory was lost before the commit; the files of this save are withdrawn, save "
                 "again");
  }
  CAIRN_TRY(make_visible(old, replaced, durability));  // (5)
  const bool given_up = fence_ != nullptr && !fence_->note_committed();
  const bool excludes_others = lock != nullptr && lock->is_held();
  if (!is_of_the_directory_) return true;
  if (!excludes_others && (given_up || !is_in_place())) return false;     // as if killed here: the next save cleans up
  CAIRN_TRY(remove_replaced_files(storage_, replaced, report.warnings));  // (6)
  if (!replaced.empty()) CAIRN_TRY(sync(durability));
  const bool has_needless_index = options_.kind == Kind::kAlone && old.index.present && old.foreign.empty();
  if (has_needless_index) {
    if (auto removed = remove_index(durability); !removed) report.warnings.emplace_back(removed.error().what());
  }
  return true;
}

Result<CommitReport> ModelTransaction::commit(const ModelContent& content, Durability durability) {
  CAIRN_TRY(write_index(content, durability));
  CommitReport report{std::move(warnings_)};
  bool is_cleaned = false;
  {
    CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::StorageLock> lock, storage_.lock());
    CAIRN_TRY_ASSIGN(is_cleaned, commit_under_lock(content, durability, lock.get(), report));
  }
  lease_.reset();
  if (is_cleaned) remove_committed_folder(storage_, folder_of_save(identity_), report.warnings);
  return report;
}

void ModelTransaction::withdraw() {
  std::vector<std::string> ignored;  // the error that caused the withdrawal is the error to report
  // The order is that of SaveTransaction::withdraw(). A single file has its final name only after the commit.
  const std::vector<std::string> published = options_.kind == Kind::kAlone ? std::vector<std::string>() : expected_;
  const std::string folder = folder_of_save(identity_);
  remove_private_folder(storage_, folder, ignored, Keep::kLease);
  withdraw_files(storage_, published, identity_.save_id);
  lease_.reset();
  remove_private_folder(storage_, folder, ignored);
  withdraw_files(storage_, published, identity_.save_id);
}

}  // namespace cairn::commit
