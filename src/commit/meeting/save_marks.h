// SaveMarks: files in a save's private folder by which the writers of the save report to each other: the failure of a
// rank (`failed-<rank>`), and the decision on the save (`committed` or `failed`).
//
// In a storage without a rename a file has its final name from the start: a rank reports its complete files by
// `files-<rank>`, with their sizes and checksums in the name if there is room. The coordinator then needs one listing.
//
// The empty file `failure` appears before the first `failed-<rank>`: the coordinator of many ranks looks for one name.
// The coordinator touches its lease after the decision, or adds a line to the lease in a storage without a rename: a
// waiting rank looks for the decision when the lease was touched, or has the line. Both are hints, and may be missing:
// the disk may have no room, or the writer may die in between.
//
// Thread-safe. Each mark is written once and never changed. A mark that can be read need not be durable.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "commit/lease.h"
#include "format/manifest/commit_record.h"
#include "storage/storage.h"

namespace cairn::commit {

// The longest interval between two looks of a waiting rank. A coordinator that has decided waits longer than this
// before it removes the folder with the reason.
inline constexpr std::chrono::milliseconds kLookIntervalMax{1500};

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
  // In a storage without a rename: reports the files of the rank, without their names.
  Result<void> write_files(std::uint32_t rank, const std::vector<manifest::CommitRecord::File>& files);
  // The files of a report with the name `name` in the folder; nullopt if the report is not readable.
  std::optional<std::vector<manifest::CommitRecord::File>> files_of_report(std::string_view name) const;
  // The rank whose report has this name; nullopt if `name` is not the name of a report.
  static std::optional<std::uint32_t> rank_of_report(std::string_view name);
  // For the coordinator, whose lease is the hint.
  void hint_at_decision();

  // The contents of the folder; kNotFound if the folder is gone.
  struct Seen {
    bool coordinator = false;                 // the coordinator's lease exists
    std::set<std::uint32_t> leases;           // ranks with a lease
    std::map<std::uint32_t, Error> failures;  // by rank
    std::set<std::uint32_t> without_reason;   // failed ranks without space for a reason, with the lease as the mark
    std::optional<Decision> decision;
  };
  Result<Seen> look() const;
  // Reads only the decision, by its names: listing a folder of many ranks is slow. Three calls into the storage.
  // kNotFound if the folder is gone, kUnsafe if it was replaced and the held folder has no decision.
  Result<std::optional<Decision>> find_decision() const;
  // Whether a rank has reported a failure, by the name of the hint: two calls into the storage. Errors as above.
  Result<bool> has_failure() const;
  bool has_failure_of(std::uint32_t rank) const;

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
