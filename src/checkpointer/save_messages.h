// Save messages: what the ranks of a save tell each other: local plans to the coordinator, assignments back, and at the
// end what was written.
//
// The coding stays within one job: ranks of one save run the same Cairn. What is read is checked all the same
// (kCorrupt).
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpointer/save_items.h"
#include "commit/save_ticket.h"
#include "format/manifest/varint.h"
#include "plan/local_plan.h"

namespace cairn::checkpointer {

// --- Every rank to the coordinator: what it could write.

struct LocalPlanOptions {
  bool record_paths = true;
  bool file_per_item = false;
  bool names_taken = false;  // this rank's directory, which may be another than the coordinator's, has files of its own
};
Result<std::string> encode_local_plan(std::span<const data_file::ItemSource> items, const LocalPlanOptions& options);

// The local plans of all ranks. Names are kept once, however many ranks have them.
class LocalPlans {
 public:
  // Takes the ranks in order. kUnsupported if the rank runs another version: it would lay out its files otherwise.
  Result<void> add(std::string_view message);

  std::span<const plan::LocalPlan> plans() const { return plans_; }
  // Whether any rank's directory holds files of an earlier save.
  bool names_taken() const { return names_taken_; }
  bool file_per_item(std::size_t rank) const { return file_per_item_[rank]; }
  // The nested place of a key, as the first rank that has it says; empty if it has none.
  const Path& path_of(std::string_view fqn) const { return keys_.find(std::string(fqn))->second; }

 private:
  Result<plan::LocalItem> read_item(manifest::CodedReader& reader);

  std::unordered_map<std::string, Path> keys_;  // its nodes stay where they are: the plans look into them
  std::vector<plan::LocalPlan> plans_;
  std::vector<bool> file_per_item_;
  bool names_taken_ = false;
};

// --- The coordinator to every rank: what it shall write, and under which names.

struct SaveAssignment {
  commit::SaveTicket ticket;
  std::uint32_t file_count = 0;  // of the whole save
  std::vector<AssignedItem> items;
};
std::string encode_assignment(const SaveAssignment& assignment);
Result<SaveAssignment> decode_assignment(std::string_view message);

// --- Every rank to the coordinator: the files that it wrote.

struct WrittenFile {
  std::uint64_t size = 0;
  std::uint32_t trailer_checksum = 0;
};
std::string encode_written(std::span<const WrittenFile> files);
Result<std::vector<WrittenFile>> decode_written(std::string_view message);

// --- The coordinator to every rank: what became of the save.

// The checkpoint that is now in place.
struct Committed {
  std::string pickle;  // of `.metadata`
  std::vector<std::string> warnings;
};
std::string encode_committed(const Committed& committed);
Result<Committed> decode_committed(std::string_view message);

struct DecisionMessage {
  std::string outcome;  // of encode_outcome(): Committed, or why not
  // The files must stay although the save failed: the new checkpoint may be in place.
  bool files_stay = false;
};
std::string encode_decision(const DecisionMessage& decision);
Result<DecisionMessage> decode_decision(std::string_view message);

}  // namespace cairn::checkpointer
