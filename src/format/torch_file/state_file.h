// StateFile: a file of torch.save that holds a state dict: its entries, by the rules of DCP's flattening, and the
// places of their bytes.
//
// Recognised by content: a zip archive (torch 1.6 and later), or the legacy format (legacy_file.h). Inert: nothing that
// the pickle names is imported or called. Entries are the leaves that torch.distributed.checkpoint (2.4 and later)
// makes of the file's dict: every mapping comes apart (dict, OrderedDict, defaultdict, Counter), a list only if it
// holds a tensor or a mapping, a tuple never; keys become text; empty containers vanish. A tensor of any kind is a
// leaf. Several tensors may share a storage: tied tensors and views stay windows of one record.
//
// Immutable once open, and safe to read from several threads. Reads pickle and directory, and no storage, when it
// opens.
#pragma once

#include "core/byte_source.h"

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/nested_shape.h"
#include "core/seeded_hash.h"
#include "format/pickle/graph.h"
#include "format/torch_file/archive_reader.h"
#include "format/torch_file/checked_storages.h"
#include "format/torch_file/file_budget.h"
#include "format/torch_file/legacy_file.h"
#include "format/torch_file/opaque_storages.h"
#include "format/torch_file/state_flattening.h"
#include "format/torch_file/storage_renamer.h"
#include "format/torch_file/storage_walk.h"
#include "format/torch_file/tensor_node.h"
#include "format/torch_file/tensor_reader.h"
#include "format/zip/directory.h"

namespace cairn::torch_file {

class StateFile {
 public:
  struct Entry {
    std::string fqn;
    Path path;
    pickle::Node node;
    std::optional<TensorNode> tensor;  // nullopt: a value, or a tensor that only torch can make (sparse, subclass)
    // Of open_item(): the class of a tensor of which `tensor` is the part of one rank. `node` then makes this part, if
    // the class is DTensor.
    std::string_view local_of = {};
    std::optional<Extents> global_sizes = {};  // of a DTensor
  };

  // Bytes of the file.
  struct Range {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
  };

  // Whether `file` begins like an archive or like a legacy file.
  static bool is_begun_by(std::span<const std::byte> first_bytes);
  static constexpr std::size_t kFirstBytes = kLegacyMagicBytes;

  // Checks the CRC of the pickle. `file` must outlive the StateFile. kUnsupported if the file is no file of torch.save,
  // or if its object is not a mapping. kCorrupt for damage; kUnsafe for a pickle whose entries would take memory out of
  // proportion to it.
  static Result<std::unique_ptr<StateFile>> open(const ByteSource& file);

  // A file that holds an entry of a state, of any kind: the entries are those of the dict {item: object}. A DTensor is
  // the tensor of its rank, and so is a tensor of a subclass that the pickle makes of a storage.
  static Result<std::unique_ptr<StateFile>> open_item(const ByteSource& file, std::string item);

  // In the order of the file's dict.
  const std::vector<Entry>& entries() const { return entries_; }
  // Null if no entry has the name.
  const Entry* find(std::string_view fqn) const;
  // What the flat names lose of the file's dict; `before` of an empty mapping counts entries.
  Result<NestedShape> shape() const;
  // Whether the file is an archive, whose records have CRCs.
  bool is_archive() const { return archive_.has_value(); }
  // Of the pickle, and of the records' names, sizes and CRCs.
  std::uint32_t checksum() const { return checksum_; }

  // A record of an archive: its place in the file's directory, and the name of an entry whose elements it holds; empty
  // if there is none.
  struct Record {
    const zip::DirectoryEntry* place;
    std::string_view fqn;
  };
  // The records, by their places in the file; none for a legacy file.
  std::vector<Record> records() const;

  // The range that holds the entry: of a tensor its storage's record, framing included; of a value the whole pickle.
  Range range(const Entry& entry) const;
  // The record of a tensor's storage in an archive; null for a value, and for a legacy file.
  const zip::DirectoryEntry* record_of(const Entry& entry) const;
  // The tensor of the entry, which has one. Reads the record's header. kUnsupported for a quantised tensor.
  Result<StoredTensor> tensor(const Entry& entry) const;
  // A tensor inside a value, or inside the attributes of a tensor.
  struct InnerTensor {
    std::string_view fqn;  // of the entry
    StoredTensor tensor;
    std::uint64_t object = 0;  // equal for one Python object
  };
  // The plain tensors inside values and attributes. Of a container that several values refer to, only the first
  // value's. Errors as of tensor().
  Result<std::vector<InnerTensor>> inner_tensors() const;
  // The entry as an inert value: tensors are copied, and a storage that anything else names is there with all its bytes
  // (TensorResolver). Checks the CRC of every storage at its first use. kUnsafe also if the values of all entries read
  // so far would together be far larger than the file.
  Result<Value> value(const Entry& entry) const;
  // The entry alone, as a torch.save archive with the calls of the file's pickle, whatever their class. kUnsupported
  // for a reference to something outside the file. Checks the CRC of every storage copied. kUnsafe as of value().
  Result<std::string> payload(const Entry& entry) const;
  // Whether the entry is a tensor and a torch.nn.Parameter.
  bool is_parameter(const Entry& entry) const { return is_parameter_node(graph_, entry.node); }
  // The attributes of an entry that is a tensor, which tensor() leaves out; unset if the tensor has none.
  pickle::Node attributes_of(const Entry& entry) const { return attributes_node(graph_, entry.node); }
  // The attributes of the OrderedDicts that come apart, by their places.
  Result<std::vector<FlatEntry>> attributes_of_dicts() const;
  // The attributes as an inert value. Errors as of value().
  Result<Value> read_attributes(pickle::Node attributes) const;
  // Equal for two entries that are one Python object, as Value::identity().
  static std::uint64_t object_of(const Entry& entry) { return entry.node.bits(); }
  // As InnerTensor::object: of a parameter the identity of the tensor inside.
  std::uint64_t tensor_object_of(const Entry& entry) const;
  // Pushes the entry with the calls of the file's pickle; `writer` has protocol(). Entries with one `memo` keep the
  // objects that they share.
  Result<void> write_as_saved(pickle::Writer& writer, const Entry& entry, StorageRenamer& storages,
                              pickle::NodeMemo& memo) const;
  int protocol() const { return pickle::protocol_of(graph_); }
  bool big_endian() const { return big_endian_; }
  // The bytes of a storage, as stored. Checks the CRC.
  Result<std::vector<std::byte>> storage(std::string_view key) const { return storages_.read_whole(key); }

  // A storage that a part of an entry names, or, with an empty key, a part of the state that no entry has.
  struct NamedStorage {
    std::string_view fqn;
    const StorageWalk::Found& found;
  };
  // Each part is visited once: a storage that several entries share may have the first one's key alone.
  Result<void> for_each_storage(const std::function<Result<void>(const NamedStorage&)>& visit) const;
  // The same for some entries: `walk` remembers what earlier calls have visited.
  StorageWalk new_walk() const { return StorageWalk(graph_); }
  // The storages that the pickle names and the file lacks, or has with another number of bytes: kCorrupt with the key.
  std::vector<Error> storage_problems(std::size_t count_max) const;
  // The storages of the file, and records of an archive that torch.save does not write. Without empty ones.
  struct StoredBytes {
    std::string name;  // in words
    std::string key;   // of the storage; empty for any other record
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<StoredBytes> stored_bytes() const;
  // Whether value(), payload() or storage() has read the storage at this place of the file: any bytes, or all.
  bool was_read(std::uint64_t offset, bool whole) const { return storages_.was_read(offset, whole); }

 private:
  StateFile(const ByteSource& file, pickle::Graph graph) : file_(&file), graph_(std::move(graph)) {}
  static Result<std::unique_ptr<StateFile>> open_archive(const ByteSource& file);
  static Result<std::unique_ptr<StateFile>> open_legacy(const ByteSource& file);
  static Result<std::unique_ptr<StateFile>> open_any(const ByteSource& file);
  Result<void> flatten();
  Result<void> take_tensor(Entry& entry);
  Result<void> check_storage(const TensorNode& tensor) const;
  Result<void> check_storage(std::string_view key, std::uint64_t expected) const;
  Result<std::string> make_payload(const Entry& entry, ByteBudget& budget) const;
  std::size_t index_of(const Entry& entry) const { return static_cast<std::size_t>(&entry - entries_.data()); }
  Result<StoredTensor> stored(const TensorNode& node) const;
  Result<StoragePlace> find_storage(std::string_view key) const;

  const ByteSource* file_;
  std::optional<ArchiveReader> archive_;                                        // of an archive
  std::unordered_map<std::string, LegacyStorage, SeededHash> legacy_storages_;  // of a legacy file
  std::vector<std::byte> pickled_;                                              // `graph_` refers to these bytes
  Range pickled_range_;
  pickle::Graph graph_;
  StateAround around_;
  bool big_endian_ = false;
  std::uint32_t checksum_ = 0;
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, std::size_t, SeededHash> by_fqn_;  // views of the entries' names
  CheckedStorages storages_{*file_, [this](std::string_view key) { return find_storage(key); }};
  OpaqueStorages opaque_{storages_, false};
  mutable FileBudget values_budget_{file_->size()};
  mutable FileBudget payloads_budget_{file_->size()};
  mutable FileBudget attributes_budget_{file_->size()};
};

}  // namespace cairn::torch_file
