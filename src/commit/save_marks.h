// SaveMarks: files in a save's private folder by which the writers of the save report to each other: the failure of a
// rank (`failed-<rank>`), and the decision on the save (`committed` or `failed`).
//
// Thread-safe. Each mark is written once and never changed. A mark that can be read need not be durable.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "commit/lease.h"
#include "storage/storage.h"

namespace cairn::commit {

// How a save ended, for all of its ranks.
struct Decision {
  std::optional<Error> failure = {};  // nullopt: committed and, if durable, synced
  bool files_stay = false;            // the save failed, but may be in place nevertheless: nothing is withdrawn
  std::vector<std::string> warnings = {};
};

class SaveMarks {
 public:
  // `storage` must outlive the marks.
  SaveMarks(storage::Storage& storage, const SaveId& save_id, SaveForm form = SaveForm::kCheckpoint)
      : storage_(storage), folder_(folder_of(save_id, form)) {}

  const std::string& folder() const { return folder_; }
  std::string path_of(std::string_view name) const { return folder_ + "/" + std::string(name); }

  // If there is no space for the mark, renames the rank's lease to the mark's name: the other writers then see the
  // failure without a reason.
  Result<void> write_failure(std::uint32_t rank, const Error& reason);
  // Fails with EEXIST if the mark exists already. `committed` and `failed` are two files: if both exist, `committed`
  // counts.
  Result<void> write_decision(const Decision& decision);

  // The contents of the folder; kNotFound if the folder is gone.
  struct Seen {
    bool coordinator = false;                 // the coordinator's lease exists
    std::set<std::uint32_t> leases;           // ranks with a lease
    std::map<std::uint32_t, Error> failures;  // by rank
    std::set<std::uint32_t> without_reason;   // failed ranks without space for a reason, with the lease as the mark
    std::optional<Decision> decision;
  };
  Result<Seen> look() const;
  // Reads only the decision, by its names: listing a folder of many ranks is slow. Network file systems may cache for a
  // while that the names are missing.
  std::optional<Decision> find_decision() const;

  // The names of marks, for code that only lists a folder. rank_of_failure(): the rank whose failure mark has this
  // name.
  static std::optional<std::uint32_t> rank_of_failure(std::string_view name);
  static constexpr std::string_view kCommitted = "committed";
  static constexpr std::string_view kFailed = "failed";

 private:
  std::optional<Error> read_failure(std::uint32_t rank, bool& without_reason) const;
  std::optional<Decision> read_decision(std::string_view name) const;

  storage::Storage& storage_;
  std::string folder_;
};

}  // namespace cairn::commit
