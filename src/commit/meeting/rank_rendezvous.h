// RankRendezvous: the coordinator's wait for the other ranks' writers in an asynchronous save. The coordinator sees the
// other writers only through the storage: by their files, marks and leases. No message is sent.
//
// A look asks for the first rank that is not complete, for a part of the others in turn, and for the hint of a failure
// (save_marks.h). Each rank's turn comes within a few seconds, and in the same time a single listing finds a failure
// without a hint.
//
// One thread at a time. The numbers are the numbers of the steps at the top of rank_save.cc.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "commit/lease_watch.h"
#include "commit/meeting/save_marks.h"
#include "format/manifest/commit_record.h"
#include "storage/storage.h"

namespace cairn::commit {

class RankRendezvous {
 public:
  using Files = std::vector<manifest::CommitRecord::File>;

  // `storage` and `marks` must outlive the object. A rank counts as lost if its lease shows no heartbeat, or no
  // progress, for longer than `deadlines` allow.
  RankRendezvous(const storage::Storage& storage, const SaveMarks& marks, const SaveIdentity& identity,
                 const SaveDeadlines& deadlines)
      : storage_(storage), marks_(marks), identity_(identity), deadlines_(deadlines) {}

  // The failures that ranks have reported up to now, in the order of the ranks; or the error that the folder of the
  // reports was replaced. Lists the folder.
  std::vector<Error> failures() const;
  // As failures(), if the hint of a failure exists; otherwise two calls into the storage.
  std::vector<Error> failures_if_hinted() const;

  // Step 5: waits until the files of all ranks are in place and every rank without files has entered. Returns the
  // files' entries for the commit record. `expected`, the files' names, and the result are by rank; the result has no
  // files for `mine`, the caller's rank. Fails with Error::of_ranks() as soon as a rank has failed or is lost, and with
  // kCancelled once `interrupted` returns true.
  Result<std::vector<Files>> wait_for_files(const std::vector<std::vector<std::string>>& expected, std::uint32_t mine,
                                            const std::function<bool()>& interrupted);

  // Step 7: waits until every living rank has read the decision and removed its lease. Also waits until `others` ranks
  // have come: a rank that came later would find neither the folder nor the reason. The wait is bounded, and short once
  // `interrupted` returns true.
  void wait_until_heard(const std::function<bool()>& interrupted, std::size_t others = 0) const;

 private:
  using Clock = std::chrono::steady_clock;
  // A rank's state, as seen by the coordinator.
  struct Rank {
    std::uint32_t number;
    const std::vector<std::string>* expected;  // the files' names
    LeaseWatch lease;
    bool entered = false;          // the rank's lease was seen
    Files files = {};              // the files in place, in order
    Clock::time_point next_since;  // when the next file was first seen in an unfinished state
    bool next_seen = false;

    // A rank without files agrees to the commit by its lease.
    bool is_complete() const { return files.size() == expected->size() && (entered || !expected->empty()); }
  };

  // Takes the files in place. Fails if a file remains wrong for longer than deadlines.progress.
  Result<void> take_files(Rank& rank) const;
  // The reason why the rank will never complete, according to the rank's lease.
  std::optional<Error> loss_of(Rank& rank, Clock::time_point start) const;
  // Looks at one rank: takes its files, and looks at its lease unless the rank is complete then. Fails if the rank is
  // lost without having completed its files.
  Result<void> look_at(Rank& rank, Clock::time_point start) const;
  // Part of step 7: waits until the leases are gone or their holders dead, at most until `is_late`. Returns whether a
  // holder was alive.
  bool wait_for_leases(const std::set<std::uint32_t>& leases, const std::function<bool()>& is_late) const;
  // The ranks that are not complete, by number.
  struct Waiting {
    std::vector<Rank*> ranks;
    std::uint32_t turn = 0;  // the number of the next rank to look at
    std::size_t per_look = 0;
    Clock::time_point start;
  };
  // Looks at the first ranks up to one that is missing, and at the ranks whose turn it is; drops complete ranks.
  // Returns whether the first ranks were all complete.
  Result<bool> look_at_some(Waiting& waiting) const;

  const storage::Storage& storage_;
  const SaveMarks& marks_;
  SaveIdentity identity_;
  SaveDeadlines deadlines_;
};

}  // namespace cairn::commit
