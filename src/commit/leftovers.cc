#include "commit/leftovers.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <string_view>
#include <unordered_set>

#include "commit/bucket/bucket_leftovers.h"
#include "commit/dcp_names.h"
#include "commit/lease.h"
#include "commit/model/model_files.h"
#include "commit/private_folder.h"
#include "commit/rank_note.h"
#include "commit/save_ticket.h"
#include "core/checksum.h"
#include "core/seeded_hash.h"
#include "format/dcp/metadata_decoder.h"
#include "format/manifest/trailer.h"

namespace cairn::commit {
namespace {

// The data files named by `metadata`, which was read from the file `name`. Nullopt if the file cannot be read, is too
// large, or has changed since.
std::optional<std::vector<std::string>> names_in(const storage::Storage& storage, const std::string& name,
                                                 const MetadataInPlace& metadata) {
  if (metadata.record) {
    std::vector<std::string> names;
    for (const auto& file : metadata.record->files) names.push_back(file.name);
    return names;
  }
  const auto bytes = storage::read_small(storage, name, kDecodedMetadataBytesMax, true);
  if (!bytes) return std::nullopt;
  const auto span = std::as_bytes(std::span(*bytes));
  if (span.size() != metadata.size || crc32(span) != metadata.checksum) return std::nullopt;
  auto decoded = dcp::decode_metadata(span);
  if (!decoded) return std::nullopt;
  return std::move(decoded->catalog.files);
}

// Adds the files of all checkpoints in the directory; returns a warning if the files cannot be determined.
std::optional<std::string> add_needed(const storage::Storage& storage, const std::vector<storage::ListedFile>& files,
                                      FileNames& needed) {
  for (const storage::ListedFile& file : files) {
    if (!is_metadata_name(file.name)) continue;
    const Result<MetadataInPlace> metadata = read_metadata_in_place(storage, file.name);
    const auto names = metadata ? names_in(storage, file.name, *metadata) : std::nullopt;
    if (!names) {
      return "nothing was cleaned up: the data files named in '" + file.name +
             "' are unknown, because the file can't be read, or has no commit record and can't be decoded or is larger "
             "than " +
             std::to_string(kDecodedMetadataBytesMax) + " bytes";
    }
    needed.insert(names->begin(), names->end());
  }
  return std::nullopt;
}

// The save that wrote the data file; nullopt if the file has no readable trailer.
std::optional<SaveId> save_in_trailer(const storage::Storage& storage, const std::string& name) {
  const auto file = storage.open(name, false);
  if (!file) return std::nullopt;
  const auto footer = manifest::read_trailer_footer(**file);
  if (!footer || !*footer) return std::nullopt;
  return (*footer)->save_id;
}

std::string replaced_list_of(const std::string& folder) { return folder + "/" + std::string(kReplacedName); }

class Cleaner {
 public:
  // `needed` files are kept, whichever save wrote them. With `rank`, only files of this rank are removed.
  Cleaner(storage::Storage& storage, FileNames needed, StorageClock clock, std::vector<std::string>& warnings,
          std::optional<std::uint32_t> rank = {})
      : storage_(storage), needed_(std::move(needed)), clock_(std::move(clock)), rank_(rank), warnings_(warnings) {}

  void remove(std::vector<std::string> names) {
    if (rank_) std::erase_if(names, [this](const std::string& name) { return !is_data_file_of_rank(name, *rank_); });
    remove_data_files(storage_, names, needed_, warnings_);
  }

  void remove_dead_save(const std::string& folder, const SaveId& save_id,
                        const std::vector<storage::ListedFile>& files) {
    // Nothing in another user's folder is trusted. The folder is left to the other user's next save.
    if (!storage_.join_folder(folder)) return;
    const Result<bool> dead = is_dead_save(storage_, folder, clock_);
    if (!dead) warnings_.emplace_back(dead.error().what());
    if (!dead || !*dead) return;
    const std::vector<std::string> replaced = replaced_and_unchanged(folder);
    std::vector<std::string> its_files;
    for (const storage::ListedFile& file : files) {
      const bool candidate = file.is_regular && file.name.ends_with(kDataFileSuffix) && !needed_.contains(file.name);
      if (candidate && belongs_to(storage_, file.name, save_id)) its_files.push_back(file.name);
    }
    const SealedFiles sealed = its_files.empty() ? SealedFiles::kWithTheLease : SealedFiles::kFirst;
    remove_dead_folder(storage_, folder, sealed, warnings_, [&] {
      remove(replaced);
      remove(its_files);
    });
  }

  // A save makes the private folder before any data file, and keeps the metadata in the folder until the commit. A file
  // is therefore unneeded if no metadata names the file and the file's save has no folder. A network file system may
  // show a new folder late, but not later than a lease lasts: the folder of an older file would be visible by now.
  void remove_leaked(const SaveId& mine, const std::vector<storage::ListedFile>& files) {
    const Result<MetadataInPlace> metadata = read_metadata_in_place(storage_);
    if (!metadata || !metadata->record) return;
    std::unordered_set<std::string> folders;
    for (const storage::ListedFile& file : files) {
      if (save_id_of_folder(file.name)) folders.insert(file.name);
    }
    std::vector<std::string> leaked;
    for (const storage::ListedFile& file : files) {
      if (!file.is_regular || needed_.contains(file.name) || !is_data_file_name(file.name)) continue;
      const std::optional<SaveId> save_id = save_in_trailer(storage_, file.name);
      if (!save_id || *save_id == mine || folders.contains(folder_of(*save_id))) continue;
      if (is_old(file.name)) leaked.push_back(file.name);
    }
    remove(leaked);
  }

 private:
  // The files of the dead save's list. Stock torch uses a name again: a file that was written after the list is of
  // another save.
  std::vector<std::string> replaced_and_unchanged(const std::string& folder) const {
    std::vector<std::string> names = read_replaced_names(storage_, folder);
    const Result<double> listed_at = storage_.touched_at(replaced_list_of(folder));
    std::erase_if(names, [&](const std::string& name) {
      const Result<double> written_at = storage_.touched_at(name);
      return !listed_at || !written_at || *written_at > *listed_at;
    });
    return names;
  }

  bool is_old(const std::string& name) const {
    const Result<double> touched_at = storage_.touched_at(name);
    const Result<double> now = clock_.now();
    return touched_at && now && *now - *touched_at > kSilenceSeconds;
  }

  storage::Storage& storage_;
  FileNames needed_;
  StorageClock clock_;
  std::optional<std::uint32_t> rank_;
  std::vector<std::string>& warnings_;
};

// The data files of a save that a rank began alone. If a kill interrupted the withdrawal of several files, the first
// may be missing: a later save of all ranks finds the rest.
std::vector<storage::ListedFile> files_of_rank(const storage::Storage& storage, const SaveId& save_id,
                                               std::uint32_t rank) {
  std::vector<storage::ListedFile> files;
  for (const bool fresh : {true, false}) {
    for (std::uint32_t number = 0;; ++number) {
      const std::string name = data_file_name({{save_id, {}, 0}, fresh}, rank, number);
      if (!storage.touched_at(name)) break;
      files.push_back({name, false, true});
    }
  }
  return files;
}

StorageClock clock_of(storage::Storage& storage, const SaveId& mine) {
  return {storage, folder_of(mine) + "/" + std::string(kLeaseName)};
}

}  // namespace

Result<FileNames> needed_by(const storage::Storage& storage, const std::vector<storage::ListedFile>& files) {
  FileNames needed;
  if (auto problem = add_needed(storage, files, needed)) return Error(ErrorCode::kCorrupt, *std::move(problem));
  return needed;
}

void remove_data_files(storage::Storage& storage, const std::vector<std::string>& names, const FileNames& needed,
                       std::vector<std::string>& warnings) {
  std::vector<std::string> unneeded;
  for (const std::string& name : names) {
    // The names come from a metadata file whose writer is unknown. Only `.distcp` files of the directory itself are
    // removed: a folder of the directory may be a checkpoint of its own.
    const bool is_in_folder = name.find('/') != std::string::npos;
    if (needed.contains(name) || is_in_folder || !storage::check_name(name) || !name.ends_with(kDataFileSuffix))
      continue;
    unneeded.push_back(name);
  }
  for (const Error& error : storage.remove_all(unneeded)) {
    if (error.code() != ErrorCode::kUnsafe) warnings.emplace_back(error.what());
  }
}

std::vector<std::string> read_replaced_names(const storage::Storage& storage, const std::string& folder) {
  std::vector<std::string> names;
  if (const auto text = storage::read_small(storage, replaced_list_of(folder), kReplacedBytesMax)) {
    std::istringstream lines(*text);
    for (std::string line; std::getline(lines, line);) names.push_back(line);
  }
  return names;
}

bool belongs_to(const storage::Storage& storage, const std::string& name, const SaveId& save_id) {
  if (name.find(to_decimal(save_id)) != std::string::npos) return true;
  if (name.ends_with(kModelSuffix)) {
    const Result<ModelFileOrigin> origin = origin_of_model_file(storage, name);
    return origin && origin->save_id == save_id;
  }
  return save_in_trailer(storage, name) == save_id;
}

std::vector<std::string> orphaned_files(const storage::Storage& storage, const std::string& metadata_name,
                                        const MetadataInPlace& old, const std::vector<std::string>& files) {
  const std::unordered_set<std::string_view, SeededHash> needed(files.begin(), files.end());
  if (!old.present) return {};
  std::vector<std::string> names = names_in(storage, metadata_name, old).value_or(std::vector<std::string>());
  std::erase_if(names, [&needed](const std::string& name) { return needed.contains(name); });
  return names;
}

Result<std::vector<std::string>> files_of_checkpoint(const storage::Storage& storage, const std::string& metadata_name,
                                                     const MetadataInPlace& old) {
  std::optional<std::vector<std::string>> names = names_in(storage, metadata_name, old);
  if (!names) {
    return Error(ErrorCode::kCorrupt,
                 "the names of the checkpoint's data files are unknown: the metadata has no commit "
                 "record, and can't be decoded or is too large")
        .file(metadata_name);
  }
  if (old.record) {
    std::erase_if(*names, [&](const std::string& name) { return !belongs_to(storage, name, old.record->save_id); });
  }
  return *std::move(names);
}

Result<std::vector<std::string>> remove_unneeded(storage::Storage& storage, const std::vector<std::string>& names,
                                                 const std::string& except) {
  CAIRN_TRY_ASSIGN(std::vector<storage::ListedFile> files, storage.list());
  std::erase_if(files, [&except](const storage::ListedFile& file) { return file.name == except; });
  CAIRN_TRY_ASSIGN(FileNames needed, needed_by(storage, files));
  std::vector<std::string> warnings;
  Cleaner(storage, std::move(needed), StorageClock::of_this_host(), warnings).remove(names);
  return warnings;
}

std::string encode_replaced_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    if (name.find('\n') == std::string::npos) text += name + "\n";
  }
  return text;
}

std::vector<std::string> clean_up(storage::Storage& storage, const SaveId& mine,
                                  const std::vector<std::string>& committed, const std::vector<std::string>& orphans,
                                  LeakedFiles leaked) {
  // The directory is listed before the metadata is read: a listed file committed after the listing is in a metadata
  // file read later.
  const auto files = storage.list();
  if (!files) return {files.error().what()};
  FileNames needed(committed.begin(), committed.end());
  if (auto problem = add_needed(storage, *files, needed)) return {*std::move(problem)};
  std::vector<std::string> warnings;
  Cleaner cleaner(storage, std::move(needed), clock_of(storage, mine), warnings);
  cleaner.remove(orphans);
  for (const storage::ListedFile& file : *files) {
    const std::optional<SaveId> save_id = file.is_folder ? save_id_of_folder(file.name) : std::nullopt;
    if (save_id && *save_id != mine) cleaner.remove_dead_save(file.name, *save_id, *files);
  }
  if (leaked == LeakedFiles::kRemove) cleaner.remove_leaked(mine, *files);
  return warnings;
}

std::vector<std::string> clean_up_as_rank(storage::Storage& storage, const SaveId& mine,
                                          const std::vector<std::string>& committed,
                                          const std::vector<std::string>& orphans, std::uint32_t rank) {
  FileNames needed(committed.begin(), committed.end());
  // A checkpoint of all ranks may name files of this rank, for example after stock torch has overwritten them.
  const Result<MetadataInPlace> of_all = read_metadata_in_place(storage);
  if (!of_all || of_all->present) {
    const std::string metadata{kMetadataName};
    if (auto problem = add_needed(storage, {{metadata, false, true}}, needed)) return {*std::move(problem)};
  }
  std::vector<std::string> warnings;
  Cleaner cleaner(storage, std::move(needed), clock_of(storage, mine), warnings, rank);
  cleaner.remove(orphans);
  for (const SaveId& save_id : read_rank_note(storage, rank)) {
    if (save_id != mine) cleaner.remove_dead_save(folder_of(save_id), save_id, files_of_rank(storage, save_id, rank));
  }
  return warnings;
}

Result<void> remove_dead_save(storage::Storage& storage, const SaveId& save_id, const StorageClock& clock,
                              std::vector<std::string>& warnings) {
  if (!storage.has_rename()) return end_dead_save_in_bucket(storage, save_id, warnings);
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage.list());
  CAIRN_TRY_ASSIGN(FileNames needed, needed_by(storage, files));
  Cleaner(storage, std::move(needed), clock, warnings).remove_dead_save(folder_of(save_id), save_id, files);
  return {};
}

Result<void> clean_up_after(storage::Storage& storage, const SaveId& save_id) {
  // Failures other than a failed sync are ignored: the next save removes the rest.
  const auto lock = storage.lock();
  if (!lock) return {};
  CAIRN_TRY(storage.sync());
  std::vector<std::string> ignored;
  const auto clock = StorageClock::in_folder(storage, folder_of(save_id));
  (void)remove_dead_save(storage, save_id, clock, ignored);
  return {};
}

}  // namespace cairn::commit
