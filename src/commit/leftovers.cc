#include "commit/leftovers.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>
#include <unordered_set>

#include "commit/dcp_names.h"
#include "commit/lease.h"
#include "commit/model_files.h"
#include "commit/rank_note.h"
#include "commit/save_ticket.h"
#include "commit/save_transaction.h"
#include "core/checksum.h"
#include "core/seeded_hash.h"
#include "format/dcp/metadata_decoder.h"
#include "format/manifest/trailer.h"

namespace cairn::commit {
namespace {

// A set of names from untrusted files.
using FileNames = std::unordered_set<std::string, SeededHash>;

constexpr std::string_view kReplacedName = "/replaced";
// A rank that joins a save while the save is being given up may leave a mark or a lease in a folder that was empty a
// moment ago. Each rank does so at most twice: the limit suffices except for very many ranks, and a later save removes
// the rest.
constexpr int kRemovalsMax = 16;

void warn_if_failed(const Result<void>& result, std::vector<std::string>& warnings) {
  if (!result) warnings.emplace_back(result.error().what());
}

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
  // A directory may hold several checkpoints: a checkpoint of all ranks, and a checkpoint of each rank that saved
  // alone.
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

class Cleaner {
 public:
  // `needed` files are kept, whichever save wrote them. With `rank`, only files of this rank are removed.
  Cleaner(storage::Storage& storage, FileNames needed, StorageClock clock, std::optional<std::uint32_t> rank = {})
      : storage_(storage), needed_(std::move(needed)), clock_(std::move(clock)), rank_(rank) {}

  void remove(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      // The names come from a metadata file whose writer is unknown. Only `.distcp` files of the directory itself are
      // removed: a folder of the directory may be a checkpoint of its own.
      const bool is_in_folder = name.find('/') != std::string::npos;
      if (needed_.contains(name) || is_in_folder || !storage::check_name(name) || !name.ends_with(kDataFileSuffix))
        continue;
      if (rank_ && !is_data_file_of_rank(name, *rank_)) continue;
      const Result<void> removed = storage_.remove(name);
      if (!removed && removed.error().code() != ErrorCode::kUnsafe) warn_if_failed(removed, warnings_);
    }
  }

  void remove_dead_save(const std::string& folder, const SaveId& save_id,
                        const std::vector<storage::ListedFile>& files) {
    // Nothing in another user's folder is trusted. The folder is left to the other user's next save.
    if (!storage_.join_folder(folder)) return;
    const Result<bool> dead = lease_has_run_out(storage_, folder, clock_);
    if (!dead && dead.error().code() != ErrorCode::kNotFound) warnings_.emplace_back(dead.error().what());
    if (!dead || !*dead) {
      // Succeeds only for an empty folder: the owner has died, or will make the folder again.
      (void)storage_.remove_folder(folder);
      return;
    }
    const std::vector<std::string> replaced = replaced_and_unchanged(folder);
    std::vector<std::string> its_files;
    for (const storage::ListedFile& file : files) {
      const bool candidate = file.is_regular && file.name.ends_with(kDataFileSuffix) && !needed_.contains(file.name);
      if (candidate && belongs_to(storage_, file.name, save_id)) its_files.push_back(file.name);
    }
    const std::size_t failures = warnings_.size();
    // An uncommitted save's sealed metadata goes first: if the saver was only paused, its commit then fails. While the
    // sealed metadata is left, a paused saver can commit, and needs its data files.
    if (!its_files.empty()) remove_private_folder(storage_, folder, warnings_, Keep::kLease);
    if (warnings_.size() != failures) return;
    remove(replaced);
    remove(its_files);
    // While a file of the save is left, the lease tells a later save whose file it is.
    if (warnings_.size() == failures) remove_private_folder(storage_, folder, warnings_);
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

  std::vector<std::string> take_warnings() && { return std::move(warnings_); }

 private:
  // The files of the dead save's list. Stock torch uses a name again: a file that was written after the list is of
  // another save.
  std::vector<std::string> replaced_and_unchanged(const std::string& folder) const {
    std::vector<std::string> names = read_replaced_list(storage_, folder);
    const Result<double> listed_at = storage_.touched_at(folder + std::string(kReplacedName));
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
  std::vector<std::string> warnings_;
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

}  // namespace

bool belongs_to(const storage::Storage& storage, const std::string& name, const SaveId& save_id) {
  if (name.find(to_decimal(save_id)) != std::string::npos) return true;
  if (name.ends_with(kModelSuffix)) {
    const Result<ModelFileOrigin> origin = origin_of_model_file(storage, name);
    return origin && origin->save_id == save_id;
  }
  return save_in_trailer(storage, name) == save_id;
}

std::vector<std::string> orphaned_files(const storage::Storage& storage, const std::string& metadata_name,
                                        const MetadataInPlace& old, const manifest::CommitRecord& record) {
  std::unordered_set<std::string_view, SeededHash> needed;
  for (const auto& file : record.files) needed.insert(file.name);
  if (!old.present) return {};
  std::vector<std::string> names = names_in(storage, metadata_name, old).value_or(std::vector<std::string>());
  std::erase_if(names, [&needed](const std::string& name) { return needed.contains(name); });
  return names;
}

Result<void> write_replaced_list(storage::Storage& storage, std::string_view folder,
                                 const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    if (name.find('\n') == std::string::npos) text += name + "\n";
  }
  // No sync: losing the list in a power cut only leaves unneeded files behind.
  return storage.create_whole(std::string(folder) + std::string(kReplacedName), text, Durability::kBuffered);
}

std::vector<std::string> read_replaced_list(const storage::Storage& storage, std::string_view folder) {
  std::vector<std::string> names;
  auto text = storage::read_small(storage, std::string(folder) + std::string(kReplacedName), kReplacedBytesMax);
  if (!text) return names;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) names.push_back(line);
  return names;
}

std::vector<std::string> clean_up(storage::Storage& storage, const SaveId& mine, const manifest::CommitRecord& record,
                                  const std::vector<std::string>& orphans, LeakedFiles leaked) {
  // The directory is listed before the metadata is read: a listed file committed after the listing is in a metadata
  // file read later.
  const auto files = storage.list();
  if (!files) return {files.error().what()};
  FileNames needed;
  for (const auto& file : record.files) needed.insert(file.name);
  if (auto problem = add_needed(storage, *files, needed)) return {*std::move(problem)};
  Cleaner cleaner(storage, std::move(needed), {storage, folder_of(mine) + "/" + std::string(kLeaseName)});
  cleaner.remove(orphans);
  for (const storage::ListedFile& file : *files) {
    const std::optional<SaveId> save_id = file.is_folder ? save_id_of_folder(file.name) : std::nullopt;
    if (save_id && *save_id != mine) cleaner.remove_dead_save(file.name, *save_id, *files);
  }
  if (leaked == LeakedFiles::kRemove) cleaner.remove_leaked(mine, *files);
  return std::move(cleaner).take_warnings();
}

std::vector<std::string> clean_up_as_rank(storage::Storage& storage, const SaveId& mine,
                                          const manifest::CommitRecord& record, const std::vector<std::string>& orphans,
                                          std::uint32_t rank) {
  FileNames needed;
  for (const auto& file : record.files) needed.insert(file.name);
  // A checkpoint of all ranks may name files of this rank, for example after stock torch has overwritten them.
  const Result<MetadataInPlace> of_all = read_metadata_in_place(storage);
  if (!of_all || of_all->present) {
    const std::string metadata{kMetadataName};
    if (auto problem = add_needed(storage, {{metadata, false, true}}, needed)) return {*std::move(problem)};
  }
  Cleaner cleaner(storage, std::move(needed), {storage, folder_of(mine) + "/" + std::string(kLeaseName)}, rank);
  cleaner.remove(orphans);
  for (const SaveId& save_id : read_rank_note(storage, rank)) {
    if (save_id != mine) cleaner.remove_dead_save(folder_of(save_id), save_id, files_of_rank(storage, save_id, rank));
  }
  return std::move(cleaner).take_warnings();
}

Result<void> remove_dead_save(storage::Storage& storage, const SaveId& save_id, const StorageClock& clock,
                              std::vector<std::string>& warnings) {
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage.list());
  FileNames needed;
  if (auto problem = add_needed(storage, files, needed)) return Error(ErrorCode::kCorrupt, *std::move(problem));
  Cleaner cleaner(storage, std::move(needed), clock);
  cleaner.remove_dead_save(folder_of(save_id), save_id, files);
  std::ranges::move(std::move(cleaner).take_warnings(), std::back_inserter(warnings));
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

void remove_private_folder(storage::Storage& storage, std::string_view folder, std::vector<std::string>& warnings,
                           Keep keep) {
  for (int removals = 1;; ++removals) {
    const auto files = storage.list(folder);
    if (!files) {
      if (files.error().code() != ErrorCode::kNotFound) warnings.emplace_back(files.error().what());
      return;
    }
    // The lease is removed last: while the folder has files, the lease names their save.
    const std::size_t failures = warnings.size();
    const auto remove = [&](const storage::ListedFile& file) {
      warn_if_failed(storage.remove(std::string(folder) + "/" + file.name), warnings);
    };
    for (const storage::ListedFile& file : *files) {
      if (file.name != kLeaseName) remove(file);
    }
    if (keep == Keep::kLease || warnings.size() != failures) return;
    for (const storage::ListedFile& file : *files) {
      if (file.name == kLeaseName) remove(file);
    }
    const Result<void> removed = storage.remove_folder(folder);
    if (removed) return;
    const auto late = storage.list(folder);
    const bool again = late && !late->empty() && removals < kRemovalsMax;
    if (!again) {
      warn_if_failed(removed, warnings);
      return;
    }
  }
}

}  // namespace cairn::commit
