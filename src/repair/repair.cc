// 1. Take the directory's lock: no save commits, and no removal runs, until step 4 has ended. No save into the
//    directory may be under way.
// 2. Judge the metadata. Good metadata, and intact metadata whose data files are missing, stay.
// 3. Find the saves of the data files that no other metadata file names, choose one, and make its catalog.
// 4. Replace the metadata (metadata_replacement.cc), if no data file is missing, or with `partial`.
// 5. Release the lock, and remove the dead saves: the files that the metadata names stay.
#include <cairn/repair.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "commit/commit_content.h"
#include "commit/dcp_names.h"
#include "commit/dead_saves.h"
#include "commit/lease.h"
#include "commit/leftovers.h"
#include "commit/metadata_in_place.h"
#include "commit/private_folder.h"
#include "commit/storage_clock.h"
#include "events/work.h"
#include "format/dcp/metadata_template.h"
#include "format/manifest/notes.h"
#include "repair/found_saves.h"
#include "repair/metadata_replacement.h"
#include "repair/metadata_state.h"
#include "repair/rebuilt_catalog.h"
#include "repair/save_choice.h"
#include "storage/open_directory.h"

namespace cairn {
namespace {

using checkpointer::MetadataState;
using checkpointer::SaveFiles;
using Metadata = RepairReport::Metadata;

constexpr std::size_t kLostMax = 1000;

Error under_way() {
  return {ErrorCode::kUnavailable, "a save into the directory is under way: repair when it has ended"};
}

class Repair {
 public:
  Repair(const std::filesystem::path& directory, const RepairOptions& options, std::optional<SaveId> save,
         storage::Storage& storage, const events::Work& work)
      : directory_(directory),
        options_(options),
        wanted_{save, options.rank},
        storage_(storage),
        work_(work),
        name_(metadata_name(options.rank)) {}

  Result<RepairReport> run() {
    {
      std::unique_ptr<storage::StorageLock> lock;
      if (!options_.dry_run) {
        CAIRN_TRY_ASSIGN(lock, storage_.lock());  // (1)
        CAIRN_TRY(remove_empty_folders());
      }
      CAIRN_TRY_ASSIGN(const bool is_saved_into, commit::has_living_save(storage_));
      if (is_saved_into) return under_way();
      CAIRN_TRY(restore_metadata(lock.get()));
      if (state_.fault) note_fault();
    }
    CAIRN_TRY(clean());  // (5)
    return std::move(report_);
  }

 private:
  Result<void> remove_empty_folders();
  Result<void> restore_metadata(const storage::StorageLock* lock);
  Result<void> rebuild(const storage::StorageLock* lock);
  Result<void> rebuild_from(const SaveFiles& save, const storage::StorageLock* lock);
  Result<void> rewrite_damaged(const storage::StorageLock* lock);
  Result<void> put(std::string bytes, std::vector<std::string> files, bool keeps_time,
                   const storage::StorageLock* lock);
  Result<checkpointer::FileNames> files_of_others() const;
  bool note_missing(const SaveFiles& save);
  void note_lost_files();
  Result<std::string> render(const Catalog& catalog, manifest::CommitRecord record) const;
  Result<void> clean();
  bool may_clean() const;
  void note_fault() {
    if (report_.metadata != Metadata::kRebuilt) return report_.problems.push_back(*state_.fault);
    report_.warnings.emplace_back(state_.fault->what());
  }
  void refuse(Error problem) {
    report_.metadata = Metadata::kUnusable;
    report_.problems.push_back(std::move(problem));
  }

  const std::filesystem::path& directory_;
  const RepairOptions& options_;
  const checkpointer::WantedSave wanted_;
  storage::Storage& storage_;
  const events::Work& work_;  // gets the number of the data files that the new metadata names
  const std::string name_;
  MetadataState state_;
  checkpointer::FoundSaves found_;
  std::vector<std::string> named_;  // the data files of metadata that a dry run would write
  RepairReport report_;
};

// A process that died between the making of its folder and its lease would look alive for minutes. A living process
// makes the folder anew.
Result<void> Repair::remove_empty_folders() {
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage_.list());
  for (const storage::ListedFile& file : files) {
    if (!file.is_folder || !commit::save_id_of_folder(file.name) || !storage_.join_folder(file.name)) continue;
    (void)commit::is_dead_save(storage_, file.name, commit::StorageClock::of_this_host());
  }
  return {};
}

// The files that the other metadata files of the directory name.
Result<checkpointer::FileNames> Repair::files_of_others() const {
  checkpointer::FileNames names;
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> listed, storage_.list());
  for (const storage::ListedFile& file : listed) {
    if (!commit::is_metadata_name(file.name) || file.name == name_) continue;
    CAIRN_TRY_ASSIGN(const commit::MetadataInPlace other, commit::read_metadata_in_place(storage_, file.name));
    const auto of_other = commit::files_of_checkpoint(storage_, file.name, other);
    if (of_other) names.insert(of_other->begin(), of_other->end());
  }
  return names;
}

Result<void> Repair::restore_metadata(const storage::StorageLock* lock) {
  CAIRN_TRY_ASSIGN(state_, checkpointer::read_metadata_state(directory_, storage_, name_));  // (2)
  if (state_.record) report_.save_id = state_.record->save_id;
  const bool is_of_wanted_save = !wanted_.id || report_.save_id == wanted_.id;
  switch (state_.kind) {
    case MetadataState::Kind::kGood:
      report_.metadata = Metadata::kGood;
      report_.is_complete = true;
      report_.files = state_.record ? state_.record->files.size() : state_.catalog.files.size();
      return {};
    case MetadataState::Kind::kRemoved:
      refuse(Error(ErrorCode::kInvalidArgument,
                   "the checkpoint was being removed when a crash came: 'cairn rm' finishes the removal"));
      return {};
    case MetadataState::Kind::kDamaged: return rewrite_damaged(lock);
    case MetadataState::Kind::kDataLost:
      if (is_of_wanted_save && !(state_.record && checkpointer::is_partial(*state_.record))) {
        note_lost_files();
        return {};
      }
      return rebuild(lock);
    case MetadataState::Kind::kLost:
    case MetadataState::Kind::kBroken: return rebuild(lock);
  }
  return {};
}

// Of intact metadata whose data files are missing or damaged.
void Repair::note_lost_files() {
  report_.metadata = Metadata::kDataLost;
  report_.missing_files = state_.file_faults.size();
  std::unordered_set<std::string_view, SeededHash> missing;
  for (const Error& fault : state_.file_faults) {
    if (fault.file() && missing.insert(*fault.file()).second) report_.missing.push_back(*fault.file());
    report_.problems.push_back(fault);
  }
  report_.files = state_.catalog.files.size() - std::min(state_.catalog.files.size(), report_.missing.size());
  const auto is_lost = [&](const ItemLocation& location) {
    return missing.contains(state_.catalog.files[location.file]);
  };
  for (CatalogTensor& tensor : state_.catalog.tensors) {
    const std::size_t width = 2 * tensor.shape.size();
    std::vector<std::int64_t> boxes;
    for (std::size_t chunk = 0; chunk < tensor.chunk_count(); ++chunk) {
      if (is_lost(tensor.locations[chunk])) continue;
      const auto begin = tensor.boxes.begin() + static_cast<std::ptrdiff_t>(chunk * width);
      boxes.insert(boxes.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
    }
    std::erase_if(tensor.locations, is_lost);
    tensor.boxes = std::move(boxes);
  }
  report_.lost = checkpointer::find_lost_elements(state_.catalog, kLostMax);
  for (const CatalogValue& value : state_.catalog.values) {
    if (is_lost(value.location) && report_.lost_values.size() < kLostMax) report_.lost_values.push_back(value.fqn);
  }
}

// The pickle and the record are intact: the new file has the same pickle.
Result<void> Repair::rewrite_damaged(const storage::StorageLock* lock) {
  if (!state_.record) return {};
  manifest::CommitRecord record = *state_.record;
  report_.files = record.files.size();
  report_.tensors = state_.catalog.tensors.size();
  report_.values = state_.catalog.values.size();
  report_.is_complete = true;
  std::vector<std::string> files = state_.catalog.files;
  const bool has_no_start = record.job_start == 0;
  CAIRN_TRY_ASSIGN(std::string bytes, render(state_.catalog, std::move(record)));
  return put(std::move(bytes), std::move(files), has_no_start, lock);
}

Result<void> Repair::rebuild(const storage::StorageLock* lock) {
  CAIRN_TRY_ASSIGN(const checkpointer::FileNames others, files_of_others());
  CAIRN_TRY_ASSIGN(found_, checkpointer::find_saves(storage_, others, options_.interrupted));  // (3)
  for (const SaveFiles& save : found_.saves) {
    report_.saves.push_back({save.save_id, save.files.size(), save.expected, save.is_leftover});
  }
  // Files of a save that has not ended, and that lacks some, are no checkpoint.
  const bool is_empty = found_.unknown.empty() && std::ranges::all_of(found_.saves, [](const SaveFiles& save) {
                          return save.is_leftover && !save.has_all_files();
                        });
  if (state_.kind == MetadataState::Kind::kLost && is_empty && !wanted_.id) return {};
  if (!others.empty() && state_.kind == MetadataState::Kind::kLost && !wanted_.rank && !wanted_.id) {
    refuse(Error(ErrorCode::kInvalidArgument,
                 "the ranks have saved alone into this directory: name the rank whose metadata is lost (option rank)"));
    return {};
  }
  checkpointer::SaveChoice choice = checkpointer::choose_save(found_, state_, wanted_);
  if (choice.save != nullptr) return rebuild_from(*choice.save, lock);
  for (const Error& damaged : found_.unknown) report_.problems.push_back(damaged);
  for (Error& problem : choice.problems) refuse(std::move(problem));
  return {};
}

// Whether a file is missing, or may be.
bool Repair::note_missing(const SaveFiles& save) {
  checkpointer::MissingFiles missing = checkpointer::missing_files_of(save, state_.record);
  report_.missing_files = missing.count;
  report_.missing = std::move(missing.names);
  const auto names_missing = [this](const Error& error) {
    return error.file() && std::ranges::find(report_.missing, *error.file()) != report_.missing.end();
  };
  for (const Error& damaged : found_.unknown) {
    const bool is_cause = missing.count != 0 || !missing.is_count_known || names_missing(damaged);
    if (is_cause) {
      report_.problems.push_back(damaged);
    } else {
      report_.warnings.push_back(std::string("a file of another save: ") + damaged.what());
    }
  }
  if (missing.count != 0) {
    const std::uint64_t all = save.expected.value_or(save.files.size() + missing.count);
    report_.problems.push_back(Error(ErrorCode::kNotFound, "data files of the checkpoint are missing or damaged")
                                   .expected(std::to_string(all) + " data files of save " + to_hex(save.save_id))
                                   .actual(std::to_string(all - missing.count)));
  } else if (!missing.is_count_known) {
    report_.problems.push_back(Error(ErrorCode::kNotFound,
                                     "the trailers do not show how many data files the save has: the files of further "
                                     "ranks may be missing")
                                   .actual(std::to_string(save.files.size()) + " data files"));
  }
  return missing.count != 0 || !missing.is_count_known;
}

Result<void> Repair::rebuild_from(const SaveFiles& save, const storage::StorageLock* lock) {
  report_.save_id = save.save_id;
  report_.files = save.files.size();
  const bool is_missing = note_missing(save);
  for (const Error& problem : save.problems) report_.problems.push_back(problem);
  const auto before_file = [this, all = save.files.size(), begun = std::size_t{0}]() mutable {
    work_.set(begun++, all);
    return options_.interrupted && options_.interrupted();
  };
  Result<checkpointer::RebuiltCatalog> rebuilt = checkpointer::rebuild_catalog(storage_, save, before_file);
  if (!rebuilt && rebuilt.error().code() == ErrorCode::kCorrupt) {
    refuse(std::move(rebuilt).error());
    return {};
  }
  if (!rebuilt) return std::move(rebuilt).error();
  Catalog& catalog = rebuilt->catalog;
  report_.tensors = catalog.tensors.size();
  report_.values = catalog.values.size();
  std::ranges::move(rebuilt->warnings, std::back_inserter(report_.warnings));
  std::vector<LostElements> uncovered = checkpointer::find_lost_elements(catalog, kLostMax);
  // A process that saves alone may have only parts of its tensors: with all files there is no loss.
  if (is_missing) report_.lost = std::move(uncovered);
  report_.is_complete = !is_missing && save.problems.empty();
  const bool has_known_loss = report_.missing_files != 0 || !report_.lost.empty();
  const bool is_no_better = state_.kind == MetadataState::Kind::kDataLost && state_.record->save_id == save.save_id &&
                            save.files.size() + 1 <= state_.record->files.size() && has_known_loss;
  if (is_no_better) {
    report_.metadata = Metadata::kDataLost;
    return {};
  }
  if (!report_.is_complete && (!options_.partial || !save.problems.empty())) {
    report_.metadata = Metadata::kUnusable;
    return {};
  }
  manifest::CommitRecord record;
  if (state_.record && state_.record->save_id == save.save_id) record = *state_.record;
  record.plan = {};
  record.files.clear();
  record.save_id = save.save_id;
  // Not 0, the job of a copy: latest() orders saves of an unknown start by time, and a copy without a start last.
  if (record.job_id == SaveId()) record.job_id = save.save_id;
  for (const checkpointer::FoundFile& file : save.files) {
    record.files.push_back({file.name, file.size, file.trailer_checksum});
  }
  std::vector<std::string> files = catalog.files;
  if (has_known_loss) {
    record.files.push_back({std::string(checkpointer::kLostName), 0, 0});
    catalog.files.emplace_back(checkpointer::kLostName);
  }
  catalog.checkpoint_id = directory_.string();
  catalog.save_id = uuid_text(save.save_id);
  const bool has_no_start = record.job_start == 0;
  CAIRN_TRY_ASSIGN(std::string bytes, render(catalog, std::move(record)));
  return put(std::move(bytes), std::move(files), has_no_start, lock);
}

Result<std::string> Repair::render(const Catalog& catalog, manifest::CommitRecord record) const {
  CAIRN_TRY_ASSIGN(const dcp::MetadataTemplate metadata, dcp::MetadataTemplate::make(catalog));
  std::string front = metadata.render(catalog.save_id.value_or(uuid_text(record.save_id)),
                                      catalog.checkpoint_id.value_or(directory_.string()), catalog.files);
  if (state_.notes) front += manifest::encode_notes(*state_.notes);
  const commit::SaveIdentity identity{record.save_id, record.job_id, record.save_number, record.job_start};
  return commit::content_of_checkpoint(identity, front, std::move(record)).render();
}

Result<void> Repair::put(std::string bytes, std::vector<std::string> files, bool keeps_time,
                         const storage::StorageLock* lock) {
  report_.metadata = Metadata::kRebuilt;
  if (!state_.notes) {
    report_.warnings.push_back(std::string("the notes are lost: ") + state_.notes.error().what());
  }
  named_ = files;
  if (options_.dry_run) return {};
  const bool had_file = state_.kind != MetadataState::Kind::kLost;
  CAIRN_TRY_ASSIGN(checkpointer::Replaced replaced,
                   checkpointer::replace_metadata(storage_,
                                                  {directory_, name_, std::move(bytes), std::move(state_.bytes),
                                                   had_file, std::move(files), keeps_time},
                                                  lock));  // (4)
  report_.damaged_name = std::move(replaced.damaged_name);
  std::ranges::move(replaced.warnings, std::back_inserter(report_.warnings));
  return {};
}

// The files of dead saves may be all that is left of a checkpoint that could not be repaired.
bool Repair::may_clean() const {
  if (report_.metadata == Metadata::kGood || report_.metadata == Metadata::kRebuilt) return true;
  return report_.metadata == Metadata::kNone;
}

Result<void> Repair::clean() {
  if (!may_clean()) return {};
  CAIRN_TRY_ASSIGN(
      commit::RemovedSaves removed,
      commit::remove_dead_saves(storage_, options_.dry_run ? commit::Removal::kTry : commit::Removal::kDo));
  for (commit::RemovedSave& save : removed.saves) {
    CleanedSave cleaned{directory_, save.save_id, {}};
    for (commit::RemovedFile& file : save.files) {
      // In a dry run the metadata that protects its files is not in place.
      if (options_.dry_run && std::ranges::find(named_, file.name) != named_.end()) continue;
      cleaned.bytes += file.bytes;
      cleaned.files.push_back({std::move(file.name), file.bytes});
    }
    report_.cleaned.push_back(std::move(cleaned));
  }
  for (const SaveId& save : removed.of_other_users) {
    report_.warnings.push_back("the dead save " + to_hex(save) + " belongs to a different user, and was left");
  }
  for (std::string& problem : removed.problems) {
    report_.problems.push_back(Error(ErrorCode::kUnavailable, std::move(problem)).while_doing("removing dead saves"));
  }
  return {};
}

}  // namespace

Result<RepairReport> repair(const std::filesystem::path& directory, const RepairOptions& options) {
  const auto explain = [&directory](Error error) {
    return std::move(error).while_doing("repairing '" + directory.string() + "'");
  };
  const std::optional<SaveId> save = commit::save_id_of_hex(options.save);
  if (!options.save.empty() && !save) {
    return Error(ErrorCode::kInvalidArgument, "the id of a save has 32 hexadecimal digits in lower case (option save)")
        .actual("'" + options.save + "'");
  }
  const Result<std::unique_ptr<storage::Storage>> storage = storage::open_directory(directory);
  if (!storage) return explain(storage.error());
  const events::Work work = events::Work::begin(WorkKind::kRepair, directory.native(), events::Work::Unit::kFiles);
  Result<RepairReport> report = Repair(directory, options, save, **storage, work).run();
  work.end(report.has_value());
  if (!report) return explain(std::move(report).error());
  return report;
}

}  // namespace cairn
