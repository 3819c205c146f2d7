// Save messages: the messages between the ranks of a save: local plans to the coordinator, assignments back, the
// written files to the coordinator, and the outcome back.
//
// The coding is used within one job only: the ranks of a save run one version of Cairn. The decoders check every
// message nevertheless (kCorrupt).
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

// --- Every rank to the coordinator: the items that the rank could write.

struct LocalPlanOptions {
  bool record_paths = true;
  bool file_per_item = false;
  bool names_taken = false;  // this rank's directory, maybe not the coordinator's, already holds a file of DCP's name
};
Result<std::string> encode_local_plan(std::span<const data_file::ItemSource> items, const LocalPlanOptions& options);

// The local plans of all ranks. A key that several ranks have is kept once.
class LocalPlans {
 public:
  // Adds the plan of the next rank; call add() in the order of the ranks. kUnsupported if the rank runs a different
  // version of Cairn: two versions may compute two layouts.
  Result<void> add(std::string_view message);

  std::span<const plan::LocalPlan> plans() const { return plans_; }
  // Whether any rank's directory holds files of an earlier save.
  bool names_taken() const { return names_taken_; }
  bool file_per_item(std::size_t rank) const { return file_per_item_[rank]; }
  // The path of a key in the nested state dict, from the first rank that has the key; empty if the key has no path.
  const Path& path_of(std::string_view fqn) const { return keys_.find(std::string(fqn))->second; }

 private:
  Result<plan::LocalItem> read_item(manifest::CodedReader& reader);

  std::unordered_map<std::string, Path> keys_;  // `plans_` points into the nodes, which never move
  std::vector<plan::LocalPlan> plans_;
  std::vector<bool> file_per_item_;
  bool names_taken_ = false;
};

// --- The coordinator to every rank: the items that the rank writes, and the ticket that determines the file names.

// A file of a model, with the next `item_count` items of the assignment.
struct AssignedFile {
  std::string name;
  std::uint32_t item_count = 0;
};

struct SaveAssignment {
  commit::SaveTicket ticket;
  std::uint32_t file_count = 0;  // of the whole save
  std::vector<AssignedItem> items;
  std::vector<AssignedFile> files;  // of a model; a checkpoint's files follow from the items
};
std::string encode_assignment(const SaveAssignment& assignment);
Result<SaveAssignment> decode_assignment(std::string_view message);

// --- Every rank to the coordinator: the files that the rank has written.

struct WrittenFile {
  std::uint64_t size = 0;
  std::uint32_t trailer_checksum = 0;
};
std::string encode_written(std::span<const WrittenFile> files);
Result<std::vector<WrittenFile>> decode_written(std::string_view message);

// --- The coordinator to every rank: the outcome of the save.

// The result of a commit.
struct Committed {
  // Of `.metadata`; empty if the pickle is larger than kSentPickleBytesMax. The ranks then read the catalog in the
  // directory if a caller asks for it: at 16,384 ranks a pickle has gigabytes.
  std::string pickle;
  std::vector<std::string> warnings;
};
inline constexpr std::size_t kSentPickleBytesMax = std::size_t{1} << 20;
std::string encode_committed(const Committed& committed);
Result<Committed> decode_committed(std::string_view message);

struct DecisionMessage {
  std::string outcome;  // of encode_outcome(): Committed, or the error
  // Ranks must keep their files although the save failed: the new checkpoint may be in place.
  bool files_stay = false;
};
std::string encode_decision(const DecisionMessage& decision);
Result<DecisionMessage> decode_decision(std::string_view message);

}  // namespace cairn::checkpointer
