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

Result<WholeMetadata> whole_metadata_of(std::span<const std::byte> bytes) {
  WholeMetadata metadata;
  auto record = manifest::read_commit_record(bytes);
  auto decoded = dcp::decode_metadata(bytes);
  if (!record) {
    // The record's checksum covers the compact catalog too, and the pickle may be intact.
    auto alone = manifest::read_only_commit_record(MemorySource(bytes));
    const bool is_intact = alone && *alone && decoded &&
                           compact_catalog::is_pickle_intact(bytes.first((*alone)->front_bytes), decoded->pickle_bytes);
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
  CAIRN_TRY_ASSIGN(metadata->compact_,
                   compact_catalog::CompactCatalog::open(*metadata->file_, record->front_bytes, record->files.size()));
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
