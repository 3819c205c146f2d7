// RecordedPlan: the plan of a save by several ranks, as the commit record keeps it: with the plan, the first save of a
// restarted job plans without messages (save/resumed_plan.h).
//
// A value; pure functions. docs/format.md, section 6, has the bytes.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/fingerprint.h"
#include "format/manifest/varint.h"

namespace cairn::manifest {

struct RecordedPlan {
  struct Rank {
    std::uint32_t file_count = 0;  // files of the rank, in the order of the commit record
    Fingerprint local_plan;        // of all that the rank's part of the plan depends on
    friend bool operator==(const Rank&, const Rank&) = default;
  };
  std::vector<Rank> ranks;  // empty: no plan is recorded

  friend bool operator==(const RecordedPlan&, const RecordedPlan&) = default;
};

void append_recorded_plan(std::string& out, const RecordedPlan& plan);
// kCorrupt for bytes that append_recorded_plan() cannot have written, and if the ranks do not have `file_count` files
// together.
Result<RecordedPlan> read_recorded_plan(CodedReader& reader, std::uint64_t file_count);

}  // namespace cairn::manifest
