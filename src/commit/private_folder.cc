#include "commit/private_folder.h"

#include <cerrno>

#include "commit/lease.h"

namespace cairn::commit {
namespace {

// A rank that joins a save while the save is being given up may leave a mark or a lease in a folder that was empty a
// moment ago. Each rank does so at most twice: the limit suffices except for very many ranks, and a later save removes
// the rest.
constexpr int kRemovalsMax = 16;

}  // namespace

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
    const auto remove = [&](bool lease) {
      std::vector<std::string> names;
      for (const storage::ListedFile& file : *files) {
        if ((file.name == kLeaseName) == lease) names.push_back(std::string(folder) + "/" + file.name);
      }
      if (names.empty()) return;
      for (const Error& error : storage.remove_all(names)) warnings.emplace_back(error.what());
    };
    remove(false);
    if (keep == Keep::kLease || warnings.size() != failures) return;
    remove(true);
    const Result<void> removed = storage.remove_folder(folder);
    if (removed) return;
    const auto late = storage.list(folder);
    const bool again = late && !late->empty() && removals < kRemovalsMax;
    if (!again) {
      warnings.emplace_back(removed.error().what());
      return;
    }
  }
}

bool is_of_other_user(const Error& error) {
  return error.code() == ErrorCode::kUnsafe || error.error_number() == EACCES;
}

Result<bool> is_dead_save(storage::Storage& storage, const std::string& folder, const StorageClock& clock) {
  const Result<bool> dead = lease_has_run_out(storage, folder, clock);
  if (dead && *dead) return true;
  // Succeeds only for an empty folder: the owner has died, or will make the folder again.
  (void)storage.remove_folder(folder);
  if (!dead && dead.error().code() != ErrorCode::kNotFound) return dead.error();
  return false;
}

void remove_dead_folder(storage::Storage& storage, const std::string& folder, SealedFiles sealed,
                        std::vector<std::string>& warnings, const std::function<void()>& remove_files) {
  const std::size_t failures = warnings.size();
  // The sealed files of an uncommitted save go first: if the saver was only paused, its commit then fails. While the
  // sealed files are left, a paused saver can commit, and needs its data files.
  if (sealed == SealedFiles::kFirst) remove_private_folder(storage, folder, warnings, Keep::kLease);
  if (warnings.size() != failures) return;
  remove_files();
  // While a file of the save is left, the lease tells a later save whose file it is.
  if (warnings.size() == failures) remove_private_folder(storage, folder, warnings);
}

}  // namespace cairn::commit
