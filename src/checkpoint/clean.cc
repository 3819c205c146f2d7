#include <cairn/latest.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "checkpoint/checkpoint_directories.h"
#include "commit/dead_saves.h"
#include "events/work.h"
#include "storage/open_directory.h"
#include "storage/staleness.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

void add_to_report(const fs::path& directory, commit::RemovedSaves removed, CleanReport& report) {
  const std::string place = "'" + directory.string() + "'";
  for (commit::RemovedSave& save : removed.saves) {
    CleanedSave cleaned{directory, save.save_id, {}};
    for (commit::RemovedFile& file : save.files) {
      cleaned.bytes += file.bytes;
      cleaned.files.push_back({std::move(file.name), file.bytes});
    }
    report.bytes += cleaned.bytes;
    report.saves.push_back(std::move(cleaned));
  }
  for (const SaveId& save : removed.of_other_users) {
    report.warnings.push_back("the save " + to_hex(save) + " in " + place +
                              " belongs to a different user, and was left");
  }
  for (std::string& problem : removed.problems) {
    report.problems.push_back(Error(ErrorCode::kUnavailable, std::move(problem)).while_doing("cleaning " + place));
  }
}

void clean_directory(const fs::path& directory, bool dry_run, CleanReport& report) {
  const auto explain = [&directory](Error error) {
    return std::move(error).while_doing("cleaning '" + directory.string() + "'");
  };
  const Result<std::unique_ptr<storage::Storage>> storage = storage::open_directory(directory);
  if (!storage) {
    if (storage::is_absent(storage.error())) return;  // removed meanwhile
    if (storage.error().error_number() == EACCES) {
      report.warnings.push_back("'" + directory.string() + "' can't be entered by this user, and was left");
    } else {
      report.problems.push_back(explain(storage.error()));
    }
    return;
  }
  Result<commit::RemovedSaves> removed =
      commit::remove_dead_saves(**storage, dry_run ? commit::Removal::kTry : commit::Removal::kDo);
  if (removed) return add_to_report(directory, *std::move(removed), report);
  report.problems.push_back(explain(std::move(removed).error()));
}

Error interrupted_before(const fs::path& directory) {
  return {ErrorCode::kCancelled, "interrupted before '" + directory.string() + "' was cleaned"};
}

void clean_new_directory(const checkpointer::PlacedNewDirectory& placed, bool dry_run, CleanReport& report) {
  const Result<std::unique_ptr<storage::Storage>> parent = storage::open_directory(placed.parent);
  if (!parent) return;  // removed meanwhile
  const auto removal = dry_run ? commit::Removal::kTry : commit::Removal::kDo;
  add_to_report(placed.path(), commit::remove_if_dead(**parent, placed.directory, removal), report);
}

}  // namespace

Result<CleanReport> clean(const fs::path& root, const CleanOptions& options) {
  CAIRN_TRY_ASSIGN(auto directories, checkpointer::checkpoint_directories(root));
  const std::vector<checkpointer::PlacedNewDirectory> new_directories = checkpointer::placed_new_directories(root);
  if (!directories && new_directories.empty()) {
    return Error(ErrorCode::kNotFound, "no such directory").file(root.string());
  }
  if (!directories) {
    directories.emplace();
  } else {
    std::sort(directories->begin() + 1, directories->end());
  }
  CleanReport report;
  const events::Work work = events::Work::begin(WorkKind::kClean, root.native(), events::Work::Unit::kDirectories);
  work.set(0, directories->size() + new_directories.size());
  const std::shared_ptr<WorkCount> count = work.count();
  for (const fs::path& directory : *directories) {
    if (options.interrupted && options.interrupted()) return interrupted_before(directory);
    std::error_code ignored;
    const bool is_link = directory != root && fs::is_symlink(fs::symlink_status(directory, ignored));
    if (!is_link) clean_directory(directory, options.dry_run, report);
    if (count) count->add_done(1);
  }
  for (const checkpointer::PlacedNewDirectory& placed : new_directories) {
    if (options.interrupted && options.interrupted()) return interrupted_before(placed.path());
    clean_new_directory(placed, options.dry_run, report);
    if (count) count->add_done(1);
  }
  work.end(true);
  return report;
}

}  // namespace cairn
