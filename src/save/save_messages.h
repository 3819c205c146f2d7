// Save messages: the messages between the ranks of a save after the local plans (local_plans.h): assignments from the
// coordinator, the written files to the coordinator, and the outcome back.
//
// The coding is used within one job only: the ranks of a save run one version of Cairn. The decoders check every
// message nevertheless (kCorrupt).
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "commit/save_ticket.h"
#include "save/save_items.h"
#include "save_plan/shared_content.h"

namespace cairn::checkpointer {

// --- The coordinator to every rank: the items that the rank writes, and the ticket that determines the file names.

// A file of a model, with the next `item_count` items of the assignment.
struct AssignedFile {
  std::string name;
  std::uint32_t item_count = 0;
};

struct SaveAssignment {
  commit::SaveTicket ticket;
  std::uint64_t plan_id = 0;     // the plan's, by which the ranks agree on it at later saves (vote.h)
  std::uint32_t file_count = 0;  // of the whole save
  // The rank also writes its own items, and `items` are common items (save_plan/shared_items.h).
  bool adds_own_items = false;
  std::vector<AssignedItem> items;
  std::vector<AssignedFile> files;             // of a model; a checkpoint's files follow from the items
  std::vector<save_plan::CommonItem> watched;  // by ascending index: the items of StagedPlan::watched
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
