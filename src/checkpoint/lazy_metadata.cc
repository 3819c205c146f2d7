#include "checkpoint/lazy_metadata.h"

#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/seeded_hash.h"
#include "format/compact_catalog/footer.h"
#include "format/dcp/metadata_decoder.h"

namespace cairn::checkpointer {

Result<void> number_files_by(const manifest::CommitRecord& record, Catalog& catalog) {
  std::unordered_map<std::string_view, std::uint32_t, SeededHash> places;
  for (const auto& file : record.files) places.emplace(file.name, static_cast<std::uint32_t>(places.size()));
  if (places.size() != record.files.size()) return Error(ErrorCode::kCorrupt, "the commit record lists a file twice");
  std::vector<std::uint32_t> numbers;
  for (const std::string& name : catalog.files) {
    const auto place = places.find(name);
    if (place == places.end()) {
      return Error(ErrorCode::kCorrupt, "the commit record does not list the data file").file(name);
    }
    numbers.push_back(place->second);
  }
  const auto renumber = [&numbers](ItemLocation& location) {
    if (location.length != 0) location.file = numbers[location.file];
  };
  for (CatalogTensor& tensor : catalog.tensors) {
    for (ItemLocation& location : tensor.locations) renumber(location);
  }
  for (CatalogValue& value : catalog.values) renumber(value.location);
  catalog.files.clear();
  for (const auto& file : record.files) catalog.files.push_back(file.name);
  return {};
}

namespace {

// The bytes before the notes, of which `front` has the notes at its end. All of `front` if the footer of the notes is
// damaged.
std::span<const std::byte> without_notes(std::span<const std::byte> front) {
  const Result<manifest::NotesPlace> notes = manifest::find_notes(MemorySource(front), front.size());
  return notes ? front.first(front.size() - notes->section_bytes) : front;
}

// `is_intact`: whether the bytes have the checksum of the commit record. If not, notes may have lost their footer.
Result<std::string> notes_in(std::span<const std::byte> front, bool is_intact) {
  const MemorySource source(front);
  CAIRN_TRY_ASSIGN(const manifest::NotesPlace place, manifest::find_notes(source, front.size()));
  const auto ends_in_catalog = [&] {
    if (front.size() < compact_catalog::kFooterBytes) return false;
    const std::uint64_t offset = front.size() - compact_catalog::kFooterBytes;
    const auto footer = compact_catalog::read_footer(front.subspan(offset), offset);
    return footer && footer->has_value();
  };
  if (place.section_bytes == 0 && !is_intact && !ends_in_catalog()) {
    return Error(ErrorCode::kCorrupt, "the end of the metadata is damaged, and with it the notes, if there were any");
  }
  return manifest::read_notes(source, place);
}

}  // namespace

Result<WholeMetadata> whole_metadata_of(std::span<const std::byte> bytes) {
  WholeMetadata metadata;
  auto record = manifest::read_commit_record(bytes);
  auto decoded = dcp::decode_metadata(bytes);
  if (!record) {
    // The record's checksum covers the compact catalog too, and the pickle may be intact.
    auto alone = manifest::read_only_commit_record(MemorySource(bytes));
    const bool is_intact =
        alone && *alone && decoded &&
        compact_catalog::is_pickle_intact(without_notes(bytes.first((*alone)->front_bytes)), decoded->pickle_bytes);
    if (!is_intact) return std::move(record).error();
    metadata.catalog_damage = Error(ErrorCode::kCorrupt,
                                    "the compact catalog of the metadata is damaged; the pickle before it is intact "
                                    "and was read in its place. A new save, or a copy of the checkpoint, has a new one")
                                  .offset(decoded->pickle_bytes)
                                  .expected(record.error().expected().value_or("an intact catalog"))
                                  .actual(record.error().actual().value_or("a damaged one"));
    record = std::move(alone);
  }
  if (!decoded) return std::move(decoded).error();
  if (!*record && decoded->pickle_bytes != bytes.size()) {
    // Stock torch writes no bytes after the pickle, so the bytes are of a damaged commit record: the reader recognises
    // no record that is cut short or lacks the magic.
    return Error(ErrorCode::kCorrupt, "the bytes after the pickle are not a commit record")
        .offset(decoded->pickle_bytes)
        .expected("the end of the file, or a commit record")
        .actual(std::to_string(bytes.size() - decoded->pickle_bytes) + " other bytes");
  }
  metadata.record = std::move(*record);
  if (metadata.record) {
    metadata.notes = notes_in(bytes.first(metadata.record->front_bytes), !metadata.catalog_damage);
  }
  metadata.catalog = std::move(decoded->catalog);
  metadata.pickle_bytes = decoded->pickle_bytes;
  CAIRN_TRY(metadata.catalog.index());
  return metadata;
}

Result<std::optional<LazyMetadata::Opened>> LazyMetadata::open(const storage::Storage& storage,
                                                               const std::string& metadata_name) {
  CAIRN_TRY_ASSIGN(std::unique_ptr<storage::ReadableFile> file, storage.open(metadata_name, true));
  CAIRN_TRY_ASSIGN(std::optional<manifest::CommitRecord> record, manifest::read_only_commit_record(*file));
  if (!record || file->size() > kMetadataBytesMax) return std::optional<Opened>();
  std::unique_ptr<LazyMetadata> metadata(new LazyMetadata(std::move(file)));
  CAIRN_TRY_ASSIGN(metadata->notes_, manifest::find_notes(*metadata->file_, record->front_bytes));
  const std::uint64_t front_bytes = record->front_bytes - metadata->notes_.section_bytes;
  CAIRN_TRY_ASSIGN(metadata->compact_,
                   compact_catalog::CompactCatalog::open(*metadata->file_, front_bytes, record->files.size()));
  if (!metadata->compact_) return std::optional<Opened>();
  return std::optional<Opened>({std::move(metadata), std::move(*record)});
}

Result<const Catalog*> LazyMetadata::whole(const manifest::CommitRecord& record) {
  const std::lock_guard lock(mutex_);
  if (!whole_) {
    std::string bytes(file_->size(), '\0');
    CAIRN_TRY(file_->read_at(0, std::as_writable_bytes(std::span(bytes))));
    CAIRN_TRY_ASSIGN(WholeMetadata metadata, whole_metadata_of(std::as_bytes(std::span(bytes))));
    CAIRN_TRY(number_files_by(record, metadata.catalog));
    whole_ = std::move(metadata.catalog);
  }
  return &*whole_;
}

}  // namespace cairn::checkpointer
