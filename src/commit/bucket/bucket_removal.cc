// The numbers are those of checkpoint_removal.cc. There is no lock, and no rename takes the metadata out of its place:
//
// 1. Nothing.
// 2. As there.
// 3. a. Create `.cairn-removed`, if absent, with the tag of the metadata file and the names of the data files.
//    b. Look for a pin again. A pin that is set from now on sees `.cairn-removed`, and is taken back (pin.cc).
//    c. Remove `.metadata` on the tag. Refused: a save has replaced the checkpoint, and the removal is taken back.
// 4. Remove the data files.
// 5. Remove `.cairn-removed`.
//
// After a crash finish_removal_from_bucket() looks whether `.metadata` still has the tag. If so, the removal is taken
// back: a pin or a reader may have come since. Otherwise it goes on with step 4.
#include "commit/bucket/bucket_removal.h"

#include <sstream>
#include <utility>

#include "commit/lease.h"
#include "commit/leftovers.h"
#include "commit/pin.h"
#include "commit/private_folder.h"
#include "storage/staleness.h"

namespace cairn::commit {
namespace {

using storage::WriteCondition;
using storage::WriteOutcome;

constexpr std::string_view kTombstoneFirstLine = "cairn-removed 1";
const std::string kMetadataFile{kMetadataName};
const std::string kTombstone{kRemovedName};

struct Tombstone {
  std::string tag;
  std::optional<SaveId> save_id;
  std::vector<std::string> names;
};

std::string encode_tombstone(const Tombstone& tombstone) {
  std::string text = std::string(kTombstoneFirstLine) + "\ntag " + tombstone.tag + "\n";
  if (tombstone.save_id) text += "save " + to_hex(*tombstone.save_id) + "\n";
  for (const std::string& name : tombstone.names) {
    if (name.find('\n') == std::string::npos) text += "file " + name + "\n";
  }
  return text;
}

Result<Tombstone> decode_tombstone(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  Tombstone tombstone;
  const bool is_known = std::getline(lines, line) && line == kTombstoneFirstLine;
  while (std::getline(lines, line)) {
    const std::size_t space = std::min(line.find(' '), line.size() - 1);
    const std::string name = line.substr(0, space);
    const std::string value = line.substr(space + 1);
    if (name == "tag") tombstone.tag = value;
    if (name == "save") tombstone.save_id = save_id_of_hex(value);
    if (name == "file") tombstone.names.push_back(value);
  }
  if (is_known && !tombstone.tag.empty()) return tombstone;
  return Error(ErrorCode::kCorrupt, "the note of a removed checkpoint is not readable: remove it by hand")
      .file(kTombstone);
}

// (3a)
Result<void> leave_tombstone(RemovalLog& log, const std::string& text) {
  CAIRN_TRY_ASSIGN(WriteOutcome outcome, log.write_if(kTombstone, text, WriteCondition::absent()));
  if (outcome.kind == WriteOutcome::Kind::kWritten) return {};
  const Result<storage::TaggedContent> read = log.read_tagged(kTombstone, kReplacedBytesMax);
  if (read && read->bytes == text) return {};  // the answer was lost
  if (outcome.why) return *std::move(outcome.why);
  return Error(ErrorCode::kUnavailable, "another process removes a checkpoint of the directory").file(kTombstone);
}

// (3c)
Result<void> remove_metadata(RemovalLog& log, const std::string& tag) {
  Result<WriteOutcome> outcome = log.remove_if(kMetadataFile, tag);
  if (!outcome && outcome.error().code() != ErrorCode::kUnsupported) return std::move(outcome).error();
  if (outcome && outcome->kind == WriteOutcome::Kind::kWritten) return {};
  CAIRN_TRY_ASSIGN(const MetadataInPlace now, read_metadata_in_place(log, kMetadataFile, WithoutRecord::kLeaveUnknown));
  if (!now.present) return {};  // the answer was lost
  if (now.tag != tag) {
    CAIRN_TRY(log.remove(kTombstone));
    return Error(ErrorCode::kReplaced, "a save has replaced the checkpoint that was to be removed").file(kMetadataFile);
  }
  // A store without conditional removals: a save that commits right now is lost. docs/durability.md says so.
  if (!outcome) return log.remove(kMetadataFile);
  Error unanswered(ErrorCode::kUnavailable, "the store did not remove the file in time");
  return outcome->why.value_or(std::move(unanswered).file(kMetadataFile));
}

// (4, 5)
Result<CheckpointRemoval> remove_rest(RemovalLog& log, const Tombstone& tombstone) {
  CheckpointRemoval removal;
  removal.save_id = tombstone.save_id;
  log.expect(tombstone.names.size());
  // After a trial of step 3 the metadata is still in place.
  CAIRN_TRY_ASSIGN(removal.warnings, remove_unneeded(log, tombstone.names, log.tries() ? kMetadataFile : ""));
  if (removal.warnings.empty()) CAIRN_TRY(log.remove(kTombstone));
  removal.files = log.take();
  std::erase_if(removal.files, [](const RemovedFile& file) { return file.name == kTombstone; });
  if (log.tries()) {
    CAIRN_TRY_ASSIGN(removal.leaves_files, log.leaves_files());
  }
  return removal;
}

}  // namespace

Result<CheckpointRemoval> remove_from_bucket(RemovalLog& log, const MetadataInPlace& chosen,
                                             const std::vector<std::string>& names, std::string& protection) {
  Tombstone tombstone{chosen.tag, std::nullopt, names};
  if (chosen.record) tombstone.save_id = chosen.record->save_id;
  CAIRN_TRY(leave_tombstone(log, encode_tombstone(tombstone)));              // (3a)
  CAIRN_TRY_ASSIGN(const std::optional<std::string> pin, note_of_pin(log));  // (3b)
  if (pin) {
    CAIRN_TRY(log.remove(kTombstone));
    protection = text_of_pin(*pin);
    return Error(ErrorCode::kInvalidArgument, "the checkpoint is " + protection).file(std::string(kPinName));
  }
  CAIRN_TRY(remove_metadata(log, chosen.tag));  // (3c)
  return remove_rest(log, tombstone);
}

Result<std::optional<CheckpointRemoval>> finish_removal_from_bucket(RemovalLog& log) {
  const Result<storage::TaggedContent> read = log.read_tagged(kTombstone, kReplacedBytesMax);
  if (!read && storage::is_absent(read.error())) return std::optional<CheckpointRemoval>();
  if (!read) return read.error();
  CAIRN_TRY_ASSIGN(const Tombstone tombstone, decode_tombstone(read->bytes));
  CAIRN_TRY_ASSIGN(const MetadataInPlace now, read_metadata_in_place(log, kMetadataFile, WithoutRecord::kLeaveUnknown));
  if (now.present && now.tag == tombstone.tag) {
    CAIRN_TRY(log.remove(kTombstone));
    return std::optional<CheckpointRemoval>();
  }
  CAIRN_TRY_ASSIGN(CheckpointRemoval removal, remove_rest(log, tombstone));
  return std::optional(std::move(removal));
}

}  // namespace cairn::commit
