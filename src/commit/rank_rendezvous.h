// RankRendezvous: how the coordinator of an asynchronous save meets the other ranks' writers in the storage: their
// files, their marks, their leases. Nothing is sent.
//
// One thread at a time. The numbers are those of the steps at the top of rank_save.cc.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "commit/lease_watch.h"
#include "commit/save_marks.h"
#include "format/manifest/commit_record.h"
#include "storage/storage.h"

namespace cairn::commit {

class RankRendezvous {
 public:
  using Files = std::vector<manifest::CommitRecord::File>;

  // `storage` and `marks` outlive it. A rank is lost that gives no sign of life, or gets nowhere, for longer than
  // `deadlines` allow.
  RankRendezvous(const storage::Storage& storage, const SaveMarks& marks, const SaveId& save_id,
                 const SaveDeadlines& deadlines)
      : storage_(storage), marks_(marks), save_id_(save_id), deadlines_(deadlines) {}

  // What ranks have said up to now of why they failed, in their order; or that the folder in which they say it was
  // replaced.
  std::vector<Error> failures() const;

  // Step 5: waits until the files of all ranks are there, and returns what the commit record holds of them. `expected`,
  // their names, and the result are by rank; of `mine`, the caller's own rank, the result has no files.
  // Error::of_ranks() as soon as a rank has failed or is lost, kCancelled once `interrupted` says true.
  Result<std::vector<Files>> wait_for_files(const std::vector<std::vector<std::string>>& expected, std::uint32_t mine,
                                            const std::function<bool()>& interrupted);

  // Step 7: waits until every rank that lives has heard the decision and taken its lease away; and for `others`, so
  // many ranks, to come, who would find the folder gone and the reason with it. But not for long, and only for a moment
  // once `interrupted` says true.
  void wait_until_heard(const std::function<bool()>& interrupted, std::size_t others = 0) const;

 private:
  using Clock = std::chrono::steady_clock;
  // What is known of one rank.
  struct Rank {
    std::uint32_t number;
    const std::vector<std::string>* expected;  // names
    LeaseWatch lease;
    bool entered = false;
    Files files = {};              // that are there, in order
    Clock::time_point next_since;  // when the next of its files was first seen, though not whole
    bool next_seen = false;

    bool is_complete() const { return files.size() == expected->size(); }
  };

  Result<std::unordered_set<std::string>> names_in_directory() const;
  // Takes the files that are there; an error if one of them is not what it should be for too long.
  Result<void> take_files(Rank& rank, const std::unordered_set<std::string>& names) const;
  // Why the rank will never complete, as its lease tells.
  std::optional<Error> loss_of(Rank& rank, Clock::time_point start) const;
  // Those of `ranks` that have gone without all of their files.
  Result<void> check_losses(std::vector<Rank>& ranks, Clock::time_point start) const;

  const storage::Storage& storage_;
  const SaveMarks& marks_;
  SaveId save_id_;
  SaveDeadlines deadlines_;
};

}  // namespace cairn::commit
