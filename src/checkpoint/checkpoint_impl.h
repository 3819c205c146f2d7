// Checkpoint::Impl: an open checkpoint: its directory, its catalog, and the data files opened so far.
#pragma once

#include <cairn/checkpoint.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/lazy_metadata.h"
#include "checkpoint/model_metadata.h"
#include "checkpoint/open_item.h"
#include "commit/metadata_in_place.h"
#include "core/seeded_hash.h"
#include "data_file/data_file.h"
#include "format/manifest/commit_record.h"
#include "storage/storage.h"

namespace cairn {

namespace checkpointer {
class WantedEntries;
}

// Identifies a checkpoint: two checkpoints in one directory, of two saves, have two identities.
std::string identity_of(const commit::MetadataInPlace& metadata);

// Immutable except for the data files, which are opened and checked on first use, and for the damage, both under a
// lock. The storage may close a file and reopen the file later, so with very many files a read may find a file missing
// after the check (kNotFound).
struct Checkpoint::Impl {
  std::unique_ptr<storage::Storage> storage;
  Catalog catalog;  // with `metadata`: only the files, those of the commit record
  // Of a checkpoint opened for a load: the compact catalog has the entries (wanted_entries.h). Else null.
  std::unique_ptr<checkpointer::LazyMetadata> metadata;
  std::optional<manifest::CommitRecord> record;  // null if stock torch wrote it
  Result<std::string> notes = std::string();     // without `metadata`, which reads its own
  std::string directory;      // as the caller of open() named it; empty if the checkpoint was opened in a storage
  std::string metadata_name;  // of a safetensors model: the name of the only file, or empty for the directory's files;
                              // of a torch.save file: its name; of a directory of torch_checkpointing: metadata.pkl
  std::string identity;       // identity_of() the metadata, or identity_of_...() of the other formats

  checkpointer::ModelMetadata model_metadata;  // of a safetensors model
  // The keys that no call reads: of a safetensors model the tensors of types without a DType, and of a directory of
  // torch_checkpointing the keys whose parts can't be put together. The catalog has each as a value.
  struct UnreadKey {
    std::string reason;
    std::string found;  // for a tensor of a safetensors model: type and shape
  };
  std::map<std::string, UnreadKey, std::less<>> unread_keys;
  std::map<std::string, Value, std::less<>> held_values;  // of a directory of torch_checkpointing: those of JSON files
  // Of a directory of torch_checkpointing: the files, by their numbers in the catalog. Of many files none stays open
  // from the opening on: file() opens it again.
  std::vector<checkpointer::FoundPlace> item_places;
  // What the checkpoint's files leave open, and what the catalog leaves out: for reports.
  std::vector<std::string> warnings;

  // The whole catalog: `catalog`, or that of `metadata`, whose files have the numbers of `catalog`.
  Result<const Catalog*> whole_catalog();

  // Checkpoint::damage(). The first damage that was noted counts.
  void note_damage(const Error& damage);
  std::optional<std::string> damage() const;

  // The entry of the key that was decoded last with all chunks, if this is `fqn`; else null. A look at a key's entry is
  // mostly followed by a read of the key.
  std::shared_ptr<const Catalog> last_entry(std::string_view fqn) const;
  void keep_last_entry(std::string_view fqn, std::shared_ptr<const Catalog> entry);

  // Whether the directory now holds the metadata of a different checkpoint, or none.
  bool replaced() const;
  // The error of a read. If a save has replaced the checkpoint meanwhile, or prune() has removed it, a data file is
  // missing without damage, or a file of its name is of a later save: kReplaced takes the place of kNotFound and
  // kCorrupt.
  Error replaced_or(Error error) const;
  // kReplaced if the checkpoint has been replaced, else `error`, whatever its code.
  Error replaced_while_read(Error error) const;

  // The data file that holds an item of `fqn`. kCorrupt if the metadata names no bytes for the item; kUnsupported if
  // the item's bytes went through a stream transform.
  Result<const data_file::DataFile*> file_of(const ItemLocation& location, std::string_view fqn, bool follow_links);

  // As Checkpoint::read_payload() and read_value(), of a key in `entries`.
  Result<std::string> payload_of(const checkpointer::WantedEntries& entries, std::string_view fqn,
                                 const LoadOptions& options);
  // As Checkpoint::read_chunk_payload(), of an item that is no value.
  Result<std::string> chunk_payload(std::string_view fqn, const ItemLocation& location, const LoadOptions& options);
  Result<Value> value_of(const checkpointer::WantedEntries& entries, std::string_view fqn, const LoadOptions& options);

  // kUnsupported for one of `unread_keys`.
  Result<void> check_read(std::string_view fqn) const;

  // The entry of a torch.save file as an inert value.
  Result<Value> value_in_torch_save(std::string_view fqn);
  // A value of a directory of torch_checkpointing.
  Result<Value> value_of_item(const CatalogValue& value);
  Result<std::string> item_payload(const CatalogValue& value);

  // Gives the data file that comes next in the catalog, open already; null for one that file() opens. Before the first
  // use of file().
  void put_file(std::unique_ptr<data_file::DataFile> file) { files_.push_back(std::move(file)); }

  // Data file `index` of the catalog. The pointer is valid for the lifetime of the Impl.
  Result<const data_file::DataFile*> file(std::uint32_t index, bool follow_links);

 private:
  mutable std::mutex mutex_;
  std::optional<std::string> damage_;
  std::string last_key_;
  std::shared_ptr<const Catalog> last_entry_;  // shared with the WantedEntries of running reads
  std::vector<std::unique_ptr<data_file::DataFile>> files_;
  std::unordered_map<std::string_view, const manifest::CommitRecord::File*, SeededHash> recorded_;
};

}  // namespace cairn
