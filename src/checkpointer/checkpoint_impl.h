// Checkpoint::Impl: an open checkpoint: its directory, its catalog, and the data files opened so far.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/seeded_hash.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "commit/save_transaction.h"
#include "data_file/data_file.h"
#include "format/manifest/commit_record.h"
#include "storage/storage.h"

namespace cairn {

// Tells a checkpoint from any other that was in its place: equal only for the same save.
std::string identity_of(const commit::MetadataInPlace& metadata);

// Immutable but for the files, which are opened on first use under a lock. Each was whole and the right one then; the
// storage may close it and open it again, so with very many files a read may still find that one is gone (kNotFound).
struct Checkpoint::Impl {
  std::unique_ptr<storage::Storage> storage;
  Catalog catalog;
  std::optional<manifest::CommitRecord> record;  // null if stock torch wrote it
  std::string metadata_name;
  std::string identity;  // as identity_of() the metadata

  // Whether the metadata in the directory is no longer the one that was opened.
  bool replaced() const;

  // The data file that holds an item of `fqn`. Fails with kCorrupt if the metadata names no bytes for it, and with
  // kUnsupported if they went through a stream transform.
  Result<const data_file::DataFile*> file_of(const ItemLocation& location, std::string_view fqn, bool follow_links);

  // Data file `index` of the catalog. The pointer lives as long as this object.
  Result<const data_file::DataFile*> file(std::uint32_t index, bool follow_links);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<data_file::DataFile>> files_;
  std::unordered_map<std::string_view, const manifest::CommitRecord::File*, SeededHash> recorded_;
};

}  // namespace cairn
