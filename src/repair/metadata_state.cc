#include "repair/metadata_state.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "checkpoint/checkpoint_candidates.h"
#include "checkpoint/lazy_metadata.h"
#include "commit/checkpoint_removal.h"
#include "core/byte_source.h"
#include "data_file/data_file.h"
#include "format/manifest/notes.h"
#include "storage/staleness.h"

namespace cairn::checkpointer {
namespace {

// Whether the error says that bytes are missing or differ, rather than that they can't be read now.
bool is_damage(const Error& error) { return error.code() == ErrorCode::kCorrupt || storage::is_absent(error); }

Result<std::string> notes_of(const MemorySource& file, const manifest::CommitRecord& record) {
  CAIRN_TRY_ASSIGN(const manifest::NotesPlace place, manifest::find_notes(file, record.front_bytes));
  return manifest::read_notes(file, place);
}

Result<void> check_files(const storage::Storage& storage, MetadataState& state) {
  for (const manifest::CommitRecord::File& file : state.record->files) {
    const auto opened = data_file::DataFile::open(storage, file.name, true, &file, state.record->save_id);
    if (opened) continue;
    Error fault = Error(opened.error()).file(file.name);
    if (!is_damage(fault)) return fault;
    state.file_faults.push_back(std::move(fault));
  }
  return {};
}

// Of a file without a commit record.
Result<void> check_stock_files(const std::filesystem::path& directory, const std::string& name, MetadataState& state) {
  std::optional<Error> fault = fault_of({directory, name}, Depth::kTrailers);
  if (!fault) return {};
  if (!is_damage(*fault)) return *std::move(fault);
  state.file_faults.push_back(*std::move(fault));
  return {};
}

Result<MetadataState> lost(const storage::Storage& storage, const std::string& name) {
  MetadataState state;
  if (name != kMetadataName) return state;
  const Result<double> removed_at = storage.touched_at(std::string(commit::kRemovedName));
  if (!removed_at && !storage::is_absent(removed_at.error())) return removed_at.error();
  if (removed_at) state.kind = MetadataState::Kind::kRemoved;
  return state;
}

// Fills in what is left of a file that can't be decoded.
Result<void> salvage(const MemorySource& file, Error fault, MetadataState& state) {
  if (!is_damage(fault)) return fault;
  state.kind = MetadataState::Kind::kBroken;
  state.fault = std::move(fault);
  Result<std::optional<manifest::CommitRecord>> record = manifest::read_only_commit_record(file);
  if (!record && record.error().code() == ErrorCode::kUnsupported) return std::move(record).error();
  if (!record || !*record) return {};
  state.record = *std::move(record);
  state.notes = notes_of(file, *state.record);
  return {};
}

}  // namespace

bool is_partial(const manifest::CommitRecord& record) {
  return std::ranges::any_of(record.files, [](const auto& file) { return file.name == kLostName; });
}

Result<MetadataState> read_metadata_state(const std::filesystem::path& directory, const storage::Storage& storage,
                                          const std::string& name) {
  Result<std::string> bytes = storage::read_small(storage, name, kMetadataBytesMax, true);
  if (!bytes && storage::is_absent(bytes.error())) return lost(storage, name);
  if (!bytes && bytes.error().code() != ErrorCode::kCorrupt) return Error(bytes.error()).file(name);
  MetadataState state;
  if (!bytes) {
    state.kind = MetadataState::Kind::kBroken;
    state.fault = Error(bytes.error()).file(name);
    return state;
  }
  state.bytes = *std::move(bytes);
  const auto span = std::as_bytes(std::span(state.bytes));
  const MemorySource file(span);
  Result<WholeMetadata> whole = whole_metadata_of(span);
  if (whole && whole->record) {
    if (auto numbered = number_files_by(*whole->record, whole->catalog); !numbered) {
      whole = std::move(numbered).error();
    }
  }
  if (!whole) {
    CAIRN_TRY(salvage(file, Error(whole.error()).file(name), state));
    return state;
  }
  state.kind = MetadataState::Kind::kGood;
  if (whole->catalog_damage || !whole->notes) {
    state.kind = MetadataState::Kind::kDamaged;
    state.fault = Error(whole->catalog_damage ? *whole->catalog_damage : whole->notes.error()).file(name);
  }
  state.record = std::move(whole->record);
  state.notes = std::move(whole->notes);
  state.catalog = std::move(whole->catalog);
  CAIRN_TRY(state.record ? check_files(storage, state) : check_stock_files(directory, name, state));
  if (!state.file_faults.empty()) state.kind = MetadataState::Kind::kDataLost;
  return state;
}

}  // namespace cairn::checkpointer
