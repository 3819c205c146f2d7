// SaveMarks: what the writers of one save leave for each other in its private folder: why a rank failed
// (`failed-<rank>`), and what became of the save (`committed` or `failed`).
//
// Thread-safe. Each mark is left once and never changed; reading one says nothing of how durable it is.
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
  std::optional<Error> failure = {};  // none: committed and, if durable, synced
  bool files_stay = false;            // it failed, but may be in place nevertheless: nothing is withdrawn
  std::vector<std::string> warnings = {};
};

class SaveMarks {
 public:
  // `storage` outlives it.
  SaveMarks(storage::Storage& storage, const SaveId& save_id) : storage_(storage), folder_(folder_of(save_id)) {}

  const std::string& folder() const { return folder_; }
  std::string path_of(std::string_view name) const { return folder_ + "/" + std::string(name); }

  // If there is no room even for the mark, the rank's lease is renamed to it: then all learn that it failed, but not
  // why.
  Result<void> write_failure(std::uint32_t rank, const Error& reason);
  // An error with EEXIST if somebody has said so already. `committed` and `failed` are two files: if both are there,
  // `committed` counts.
  Result<void> write_decision(const Decision& decision);

  // What lies in the folder; kNotFound if the folder is gone.
  struct Seen {
    bool coordinator = false;                 // its lease is there
    std::set<std::uint32_t> leases;           // ranks that have one
    std::map<std::uint32_t, Error> failures;  // by rank
    std::set<std::uint32_t> without_reason;   // those of them that had no room to say why, and gave their lease for it
    std::optional<Decision> decision;
  };
  Result<Seen> look() const;
  // Only the decision, by its name: a folder of many ranks takes its time to list. Network file systems may remember
  // for a while that it was not there.
  std::optional<Decision> find_decision() const;

  // The names of marks, for whoever only lists a folder. The rank whose failure mark has this name.
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
