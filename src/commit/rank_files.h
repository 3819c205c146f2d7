// RankFiles: a rank's data files, from the private names to the final names.
//
// One thread at a time. The numbers are the numbers of the commit's steps (save_transaction.cc).
#pragma once

#include <cairn/options.h>
#include <cairn/result.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "commit/lease.h"
#include "commit/save_ticket.h"
#include "storage/storage.h"

namespace cairn::commit {

// Removes the files in `names` with this save's id in the name or in the trailer. Foreign files stay.
void withdraw_files(storage::Storage& storage, const std::vector<std::string>& names, const SaveId& save_id);

class RankFiles {
 public:
  // The process that makes the private folder. kThisRank: only if the folder is missing. kCoordinator: for all ranks; a
  // rank without the folder has been given up.
  enum class FolderMaker : std::uint8_t { kThisRank, kCoordinator };
  // `storage` must outlive the object. Until hand_over(), the destructor withdraws the published files.
  RankFiles(storage::Storage& storage, const SaveIdentity& identity, FolderMaker maker = FolderMaker::kThisRank)
      : storage_(storage), identity_(identity), has_folder_(maker == FolderMaker::kCoordinator) {}
  ~RankFiles();
  RankFiles(const RankFiles&) = delete;
  RankFiles& operator=(const RankFiles&) = delete;

  // The private name under which step 2 writes a file; the final name in a storage without a rename, where a withdrawal
  // counts the file as published from now on. The first call makes the private folder if the folder is
  // missing: the rank's node may see another directory than the coordinator's node, or the coordinator has given the
  // rank up. The new folder gets a lease of this process. By the lease, the next save recognises leftovers of this
  // rank.
  Result<std::string> private_name(const std::string& file_name);

  // Step 3: renames the files to their final names. The files are complete and synced under their private names.
  Result<void> publish(const std::vector<std::string>& file_names, Durability durability);

  // The coordinator now knows of the files: from now on only the coordinator decides whether the files stay. A rank
  // that merely gets no answer must not withdraw: the coordinator may have committed.
  void hand_over() { handed_over_ = true; }
  // Called when the coordinator has reported that the save failed.
  void withdraw();
  // Called when the coordinator has reported that the save is committed: a folder made by this rank is no longer
  // needed.
  void remove_own_folder();

 private:
  storage::Storage& storage_;
  SaveIdentity identity_;
  bool has_folder_;
  std::optional<Lease> lease_;  // of a folder that this object has made
  std::vector<std::string> published_;
  bool handed_over_ = false;
};

}  // namespace cairn::commit
