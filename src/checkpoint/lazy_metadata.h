// LazyMetadata: an open `.metadata` file with a compact catalog, of which a load decodes only its own entries.
//
// Thread-safe.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "format/compact_catalog/reader.h"
#include "format/manifest/commit_record.h"
#include "format/manifest/notes.h"
#include "storage/storage.h"

namespace cairn::checkpointer {

// The content of a `.metadata` file.
struct WholeMetadata {
  Catalog catalog;  // indexed
  std::optional<manifest::CommitRecord> record;
  std::uint64_t pickle_bytes = 0;
  std::optional<Error> catalog_damage;  // of the compact catalog or the notes; the pickle is intact
  Result<std::string> notes = std::string();
};

// Far above the size of any real `.metadata`: bounds the memory for a damaged file size.
inline constexpr std::uint64_t kMetadataBytesMax = std::uint64_t{1} << 34;

// Decodes all bytes of a `.metadata` file. kCorrupt if the pickle or the commit record is damaged.
Result<WholeMetadata> whole_metadata_of(std::span<const std::byte> bytes);

// Gives the catalog's files the order of the commit record, and the locations the numbers of files in this order.
// kCorrupt if the record does not list a file of the catalog.
Result<void> number_files_by(const manifest::CommitRecord& record, Catalog& catalog);

class LazyMetadata {
 public:
  struct Opened {
    std::unique_ptr<LazyMetadata> metadata;
    manifest::CommitRecord record;
  };
  // Nullopt if the file has no commit record or no compact catalog. An error if the file cannot be opened, or if record
  // or catalog is damaged: whole_metadata_of() then says what is left.
  static Result<std::optional<Opened>> open(const storage::Storage& storage, const std::string& metadata_name);

  const compact_catalog::CompactCatalog& compact() const { return *compact_; }
  // Checkpoint::notes(), read by the call.
  Result<std::string> notes() const { return manifest::read_notes(*file_, notes_); }
  // The whole catalog, decoded at the first call. The numbers of files are places in `record`, the commit record.
  // Fails as whole_metadata_of(), and with kCorrupt if the pickle names a file that the record does not have.
  Result<const Catalog*> whole(const manifest::CommitRecord& record);

 private:
  explicit LazyMetadata(std::unique_ptr<storage::ReadableFile> file) : file_(std::move(file)) {}

  std::unique_ptr<storage::ReadableFile> file_;
  std::optional<compact_catalog::CompactCatalog> compact_;  // reads file_
  manifest::NotesPlace notes_;
  std::mutex mutex_;
  std::optional<Catalog> whole_;
};

}  // namespace cairn::checkpointer
