#include "commit/bucket/bucket_leftovers.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "commit/bucket/closed_lease.h"
#include "commit/dcp_names.h"
#include "commit/lease.h"
#include "commit/leftovers.h"
#include "commit/private_folder.h"
#include "storage/staleness.h"

namespace cairn::commit {
namespace {

using ListedFiles = std::vector<storage::ListedFile>;

// (7c) After the closing of a lease that announces a write which may still succeed.
constexpr double kDoubtSeconds = 3600;

class BucketCleaner {
 public:
  BucketCleaner(storage::Storage& storage, const ListedFiles& files, std::vector<std::string>& warnings)
      : storage_(storage), files_(files), warnings_(warnings) {}

  // (7b, 7c) Whether the save of the folder is dead, and its files are not needed any more.
  Result<bool> has_ended(const SaveId& save_id) const {
    const std::string folder = folder_of(save_id);
    const Result<bool> run_out = lease_has_run_out(storage_, folder, StorageClock::of_this_host());
    if (!run_out && storage::is_absent(run_out.error())) return false;
    if (!run_out) return run_out.error();
    if (!*run_out) return false;
    CAIRN_TRY_ASSIGN(const LeaseClosing closing, close_lease(storage_, folder));
    if (!closing.is_closed) return false;
    CAIRN_TRY_ASSIGN(const ClosedSaveState state, state_of_closed_save(storage_, save_id, closing.holder));
    if (state.what != ClosedSave::kUnknown) return true;
    CAIRN_TRY_ASSIGN(const double closed_at, storage_.touched_at(folder + "/" + std::string(kLeaseName)));
    CAIRN_TRY_ASSIGN(const double now, storage_.now());
    return now - closed_at > kDoubtSeconds;
  }

  // (7d)
  void remove_saves(const std::set<std::string>& ids, const std::vector<SaveId>& saves) {
    if (saves.empty()) return;
    // Listed and read after the closings: a save that has committed meanwhile keeps its files.
    const Result<ListedFiles> now = storage_.list();
    const Result<FileNames> needed = now ? needed_by(storage_, *now) : Result<FileNames>(now.error());
    if (!needed) {
      warnings_.emplace_back(needed.error().what());
      return;
    }
    const std::size_t failures = warnings_.size();
    std::vector<std::string> names;
    for (const SaveId& save : saves) {
      for (std::string& name : read_replaced_names(storage_, folder_of(save))) names.push_back(std::move(name));
    }
    for (const storage::ListedFile& file : files_) {
      const std::optional<SaveId> owner = file.is_regular ? save_id_in_name(file.name) : std::nullopt;
      if (owner && ids.contains(to_hex(*owner))) names.push_back(file.name);
    }
    remove_data_files(storage_, names, *needed, warnings_);
    const Result<void> abandoned = storage_.abandon_writes([&](std::string_view name) {
      const std::optional<SaveId> owner = save_id_in_name(name);
      return owner && ids.contains(to_hex(*owner));
    });
    if (!abandoned) warnings_.emplace_back(abandoned.error().what());
    if (warnings_.size() != failures) return;  // while a file is left, the lease tells a later save whose file it is
    for (const SaveId& save : saves) remove_private_folder(storage_, folder_of(save), warnings_);
  }

  // (7e)
  // `known`: files that are needed, or that were just removed.
  Result<void> remove_leaked(const SaveId& mine, const FileNames& known) {
    std::set<std::string> with_folder{to_hex(mine)};
    for (const storage::ListedFile& file : files_) {
      if (const auto save = file.is_folder ? save_id_of_folder(file.name) : std::nullopt)
        with_folder.insert(to_hex(*save));
    }
    std::map<std::string, std::vector<std::string>> leaked;  // by save
    for (const storage::ListedFile& file : files_) {
      const auto save = file.is_regular && !known.contains(file.name) ? save_id_in_name(file.name) : std::nullopt;
      if (!save || with_folder.contains(to_hex(*save))) continue;
      CAIRN_TRY_ASSIGN(const double now, storage_.now());
      if (now - file.touched_at > kSilenceSeconds) leaked[to_hex(*save)].push_back(file.name);
    }
    std::vector<std::string> names;
    for (const auto& [id, of_save] : leaked) {
      const Result<double> lease = storage_.touched_at(folder_of(*save_id_of_hex(id)) + "/" + std::string(kLeaseName));
      if (!lease && storage::is_absent(lease.error())) names.insert(names.end(), of_save.begin(), of_save.end());
    }
    if (names.empty()) return {};
    CAIRN_TRY_ASSIGN(const ListedFiles files, storage_.list());
    CAIRN_TRY_ASSIGN(const FileNames needed, needed_by(storage_, files));
    remove_data_files(storage_, names, needed, warnings_);
    return {};
  }

  // (7f)
  void remove_trials() {
    std::vector<std::string> names;
    const Result<double> now = storage_.now();
    for (const storage::ListedFile& file : files_) {
      const bool is_trial = file.is_regular && file.name.starts_with(storage::kConditionTrialPrefix);
      if (is_trial && now && *now - file.touched_at > kSilenceSeconds) names.push_back(file.name);
    }
    if (names.empty()) return;
    for (const Error& error : storage_.remove_all(names)) warnings_.emplace_back(error.what());
  }

  // (7b to 7d) Of all saves but `mine`.
  void end_dead_saves(const SaveId& mine) {
    std::set<std::string> ids;
    std::vector<SaveId> saves;
    for (const storage::ListedFile& file : files_) {
      const std::optional<SaveId> save = file.is_folder ? save_id_of_folder(file.name) : std::nullopt;
      if (!save || *save == mine) continue;
      const Result<bool> ended = has_ended(*save);
      if (!ended) warnings_.emplace_back(ended.error().what());
      if (!ended || !*ended) continue;
      ids.insert(to_hex(*save));
      saves.push_back(*save);
    }
    remove_saves(ids, saves);
  }

 private:
  storage::Storage& storage_;
  const ListedFiles& files_;  // of the directory
  std::vector<std::string>& warnings_;
};

}  // namespace

std::vector<std::string> clean_bucket(storage::Storage& storage, const SaveId& mine, const std::string& metadata_name,
                                      const std::vector<std::string>& committed,
                                      const std::vector<std::string>& orphans) {
  const Result<ListedFiles> files = storage.list();
  if (!files) return {files.error().what()};
  std::vector<std::string> warnings;
  // (7a) What this save has just replaced no later save names again.
  ListedFiles others = *files;
  std::erase_if(others, [&](const storage::ListedFile& file) { return file.name == metadata_name; });
  Result<FileNames> needed = needed_by(storage, others);
  if (!needed) return {needed.error().what()};
  needed->insert(committed.begin(), committed.end());
  remove_data_files(storage, orphans, *needed, warnings);
  BucketCleaner cleaner(storage, *files, warnings);
  cleaner.end_dead_saves(mine);
  cleaner.remove_trials();
  needed->insert(orphans.begin(), orphans.end());
  const Result<void> removed = cleaner.remove_leaked(mine, *needed);
  if (!removed) warnings.emplace_back(removed.error().what());
  return warnings;
}

std::vector<std::string> clean_bucket_as_rank(storage::Storage& storage, const std::vector<std::string>& committed,
                                              const std::vector<std::string>& orphans, std::uint32_t rank) {
  std::vector<std::string> names = orphans;
  std::erase_if(names, [rank](const std::string& name) { return !is_data_file_of_rank(name, rank); });
  if (names.empty()) return {};
  // A checkpoint of all ranks may name files of this rank.
  ListedFiles of_all;
  const Result<MetadataInPlace> metadata = read_metadata_in_place(storage);
  if (!metadata || metadata->present) of_all.push_back({std::string(kMetadataName), false, true});
  Result<FileNames> needed = needed_by(storage, of_all);
  if (!needed) return {needed.error().what()};
  needed->insert(committed.begin(), committed.end());
  std::vector<std::string> warnings;
  remove_data_files(storage, names, *needed, warnings);
  return warnings;
}

Result<void> end_dead_save_in_bucket(storage::Storage& storage, const SaveId& save_id,
                                     std::vector<std::string>& warnings) {
  CAIRN_TRY_ASSIGN(const ListedFiles files, storage.list());
  BucketCleaner cleaner(storage, files, warnings);
  CAIRN_TRY_ASSIGN(const bool ended, cleaner.has_ended(save_id));
  if (ended) cleaner.remove_saves({to_hex(save_id)}, {save_id});
  return {};
}

}  // namespace cairn::commit
