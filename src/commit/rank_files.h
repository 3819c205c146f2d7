// RankFiles: the data files of one rank of a save, from their private names to their final ones.
//
// One thread at a time. The numbers are those of the commit's steps (save_transaction.cc).
#pragma once

#include <cairn/durability.h>
#include <cairn/result.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "commit/lease.h"
#include "commit/save_ticket.h"
#include "storage/storage.h"

namespace cairn::commit {

// Removes those of `names` that this save wrote: files of others that have these names stay.
void withdraw_files(storage::Storage& storage, const std::vector<std::string>& names, const SaveId& save_id);

class RankFiles {
 public:
  // Who makes the private folder: kShared: the coordinator, for all; a rank that does not find it has been given up.
  enum class Folder : std::uint8_t { kOwnIfMissing, kShared };
  // `storage` outlives it. Until hand_over(), destroying it withdraws what it published.
  RankFiles(storage::Storage& storage, const SaveIdentity& identity, Folder folder = Folder::kOwnIfMissing)
      : storage_(storage), identity_(identity), has_folder_(folder == Folder::kShared) {}
  ~RankFiles();
  RankFiles(const RankFiles&) = delete;
  RankFiles& operator=(const RankFiles&) = delete;

  // Step 2 writes a file under this name. The first call makes the private folder if it is not there: the directory of
  // another node than the coordinator's may be another one, or the coordinator has given us up. So the folder gets a
  // lease of ours, by which the next save knows what is left of it and of the files.
  Result<std::string> private_name(const std::string& file_name);

  // Step 3: gives the files, complete and synced under their private names, their final ones.
  Result<void> publish(const std::vector<std::string>& file_names, Durability durability);

  // The coordinator knows of the files: from now on only it decides what becomes of them. A rank that merely does not
  // hear from it must not withdraw: it may have committed.
  void hand_over() { handed_over_ = true; }
  // The coordinator said that the save has failed.
  void withdraw();
  // The coordinator said that the save is committed: a folder of our own has done its work.
  void remove_own_folder();

 private:
  storage::Storage& storage_;
  SaveIdentity identity_;
  bool has_folder_;
  std::optional<Lease> lease_;  // of a folder that we have made
  std::vector<std::string> published_;
  bool handed_over_ = false;
};

}  // namespace cairn::commit
