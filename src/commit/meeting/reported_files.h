// The coordinator's wait for the files of the other ranks in a storage without a rename: by listings of the save's
// folder, whose number does not depend on the number of ranks. The numbers are those of rank_save.cc.
#pragma once

#include <cairn/options.h>
#include <cairn/result.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "commit/meeting/save_marks.h"
#include "format/manifest/commit_record.h"
#include "storage/storage.h"

namespace cairn::commit {

struct ExpectedFiles {
  const std::vector<std::vector<std::string>>& names;  // by rank
  std::uint32_t mine = 0;                              // the rank of the coordinator, which is not waited for
};

// Step 5, as RankRendezvous::wait_for_files().
Result<std::vector<std::vector<manifest::CommitRecord::File>>> wait_for_reports(
    const storage::Storage& storage, const SaveMarks& marks, const SaveDeadlines& deadlines,
    const ExpectedFiles& expected, const std::function<bool()>& interrupted);

// Step 7: whether one of the ranks with these leases may live. Reads only the leases of few ranks.
bool has_living_rank(const storage::Storage& storage, const SaveMarks& marks, const std::set<std::uint32_t>& leases);

}  // namespace cairn::commit
