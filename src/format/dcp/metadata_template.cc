#include "format/dcp/metadata_template.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "format/dcp/torch_modules.h"
#include "format/pickle/value_writer.h"
#include "format/pickle/writer.h"

namespace cairn::dcp {
namespace {

constexpr int kProtocol = 4;
// The bytes of a chunk and its item, rounded up: a pickle that outgrows its memory is copied, and millions of chunks
// take gigabytes. Integers of more than 31 bits take more.
constexpr std::size_t kRenderedBytesPerChunk = 104;
constexpr std::size_t kBytesPerDimension = 16;

void append_text(std::string& out, std::string_view text) {
  pickle::Writer writer(kProtocol);
  const std::size_t begin = writer.size();
  writer.text(text);
  out += writer.since(begin);
}

}  // namespace

class MetadataWriter {
 public:
  explicit MetadataWriter(const Catalog& catalog)
      : catalog_(catalog), writer_(kProtocol), file_memos_(catalog.files.size()), fqn_memos_(catalog.keys.size()) {}

  Result<MetadataTemplate> write() &&;

 private:
  using Slot = MetadataTemplate::Slot;

  // A recurring run of opcodes. The first time, the opcodes define names in the memo. From the second time on, the
  // bytes are always equal and are copied.
  struct Phrase {
    std::string bytes;
    int times = 0;
  };
  template <typename Write>
  void phrase(Phrase& known, Write write) {
    if (known.times > 1) return writer_.raw(known.bytes);
    const std::size_t begin = writer_.size();
    write();
    if (++known.times > 1) known.bytes = writer_.since(begin);
  }

  void open_object(std::string_view module, std::string_view name);  // up to the first attribute
  void close_object();
  void numbers(std::span<const std::int64_t> list);
  void shape(std::span<const std::int64_t> sizes);
  void slot(Slot::Kind kind, std::uint32_t file = 0) { template_.slots_.push_back({writer_.size(), kind, file}); }

  void entries();
  void tensor(const CatalogTensor& tensor);
  void properties(const CatalogTensor& tensor);
  void storage();
  void item(std::size_t key, std::optional<std::size_t> chunk, const ItemLocation& location);
  void file(std::uint32_t number);
  void transforms(const std::string& fqn);
  Result<void> planner_data();
  void storage_meta();
  const std::string& fqn_of_key(std::size_t key) const;

  const Catalog& catalog_;
  pickle::Writer writer_;
  MetadataTemplate template_;
  std::vector<std::optional<std::uint32_t>> file_memos_;
  std::vector<std::uint32_t> fqn_memos_;  // by key
  std::optional<std::uint32_t> layout_memo_;
  std::optional<std::uint32_t> memory_format_memo_;
  Phrase shape_class_, chunk_open_, chunk_sizes_, index_open_, index_number_, index_offset_, item_open_, item_offset_,
      item_length_;
};

Result<MetadataTemplate> MetadataWriter::write() && {
  std::size_t guess = 4096;
  for (const CatalogTensor& tensor : catalog_.tensors) {
    guess += tensor.chunk_count() * (kRenderedBytesPerChunk + kBytesPerDimension * tensor.shape.size());
  }
  writer_.reserve(guess);
  open_object(kMetadataModule, "Metadata");
  writer_.shared_text("state_dict_metadata");
  entries();
  writer_.shared_text("planner_data");
  CAIRN_TRY(planner_data());
  writer_.shared_text("storage_data");
  storage();
  writer_.shared_text("storage_meta");
  storage_meta();
  writer_.shared_text("version");
  writer_.text(catalog_.version.value_or(std::string(kMetadataVersion)));
  for (const auto& [name, value] : catalog_.extra) {
    if (name == "planner_data") continue;
    writer_.shared_text(name);
    CAIRN_TRY(pickle::write_value(writer_, value));
  }
  close_object();
  writer_.stop();
  template_.opcodes_ = std::move(writer_).take();
  template_.file_count_ = catalog_.files.size();
  return std::move(template_);
}

void MetadataWriter::open_object(std::string_view module, std::string_view name) {
  writer_.global(module, name);
  writer_.empty_tuple();
  writer_.new_instance();
  writer_.empty_dict();
  writer_.mark();
}

void MetadataWriter::close_object() {
  writer_.set_items();
  writer_.build();
}

// A tuple.
void MetadataWriter::numbers(std::span<const std::int64_t> list) {
  constexpr std::size_t kCountWithOpcode = 3;
  if (list.size() > kCountWithOpcode) writer_.mark();
  for (const std::int64_t number : list) writer_.integer(number);
  if (list.size() > kCountWithOpcode) {
    writer_.tuple_since_mark();
  } else {
    writer_.tuple(list.size());
  }
}

void MetadataWriter::shape(std::span<const std::int64_t> sizes) {
  phrase(shape_class_, [this] { writer_.global("torch", "Size"); });
  numbers(sizes);
  writer_.tuple(1);
  writer_.reduce();
}

const std::string& MetadataWriter::fqn_of_key(std::size_t key) const {
  const Catalog::KeyRef ref = catalog_.keys[key];
  return ref.is_tensor ? catalog_.tensors[ref.index].fqn : catalog_.values[ref.index].fqn;
}

void MetadataWriter::entries() {
  writer_.empty_dict();
  writer_.mark();
  for (std::size_t key = 0; key < catalog_.keys.size(); ++key) {
    writer_.text(fqn_of_key(key));
    fqn_memos_[key] = writer_.memoize();
    const Catalog::KeyRef ref = catalog_.keys[key];
    if (ref.is_tensor) {
      tensor(catalog_.tensors[ref.index]);
    } else {
      writer_.global(kMetadataModule, "BytesStorageMetadata");
      writer_.empty_tuple();
      writer_.new_instance();
    }
  }
  writer_.set_items();
}

void MetadataWriter::tensor(const CatalogTensor& tensor) {
  open_object(kMetadataModule, "TensorStorageMetadata");
  writer_.shared_text("properties");
  properties(tensor);
  writer_.shared_text("size");
  shape(tensor.shape.span());
  writer_.shared_text("chunks");
  writer_.empty_list();
  writer_.mark();
  const std::size_t dimensions = tensor.shape.size();
  const std::int64_t* numbers = tensor.boxes.data();
  for (std::size_t chunk = 0; chunk < tensor.chunk_count(); ++chunk, numbers += 2 * dimensions) {
    phrase(chunk_open_, [this] {
      open_object(kMetadataModule, "ChunkStorageMetadata");
      writer_.shared_text("offsets");
    });
    shape({numbers, dimensions});
    phrase(chunk_sizes_, [this] { writer_.shared_text("sizes"); });
    shape({numbers + dimensions, dimensions});
    close_object();
  }
  writer_.appends();
  close_object();
}

void MetadataWriter::properties(const CatalogTensor& tensor) {
  writer_.global(kMetadataModule, "TensorProperties");
  writer_.empty_tuple();
  writer_.new_instance();
  writer_.mark();
  writer_.global("torch", name_of(tensor.dtype));
  if (layout_memo_) {
    writer_.reference(*layout_memo_);
  } else {
    writer_.global("torch.serialization", "_get_layout");
    writer_.text("torch.strided");
    writer_.tuple(1);
    writer_.reduce();
    layout_memo_ = writer_.memoize();
  }
  writer_.boolean(tensor.requires_grad);
  if (memory_format_memo_) {
    writer_.reference(*memory_format_memo_);
  } else {
    writer_.global(kMetadataModule, "_MEM_FORMAT_ENCODING");
    writer_.integer(0);  // contiguous: the only memory format that torch stores
    writer_.tuple(1);
    writer_.reduce();
    memory_format_memo_ = writer_.memoize();
  }
  writer_.boolean(false);  // not in pinned memory
  if (tensor.strides) numbers(tensor.strides->span());
  writer_.tuple_since_mark();
  writer_.build();
}

void MetadataWriter::storage() {
  writer_.empty_dict();
  writer_.mark();
  for (std::size_t key = 0; key < catalog_.keys.size(); ++key) {
    const Catalog::KeyRef ref = catalog_.keys[key];
    if (!ref.is_tensor) {
      item(key, std::nullopt, catalog_.values[ref.index].location);
      continue;
    }
    const CatalogTensor& tensor = catalog_.tensors[ref.index];
    for (std::size_t chunk = 0; chunk < tensor.chunk_count(); ++chunk) item(key, chunk, tensor.locations[chunk]);
  }
  writer_.set_items();
}

void MetadataWriter::item(std::size_t key, std::optional<std::size_t> chunk, const ItemLocation& location) {
  if (location.length == 0) return;
  phrase(index_open_, [this] {
    open_object(kMetadataModule, "MetadataIndex");
    writer_.shared_text("fqn");
  });
  writer_.reference(fqn_memos_[key]);
  phrase(index_number_, [this] { writer_.shared_text("index"); });
  if (chunk) {
    writer_.integer(static_cast<std::int64_t>(*chunk));
    phrase(index_offset_, [this] { writer_.shared_text("offset"); });
    const CatalogTensor& tensor = catalog_.tensors[catalog_.keys[key].index];
    const std::size_t dimensions = tensor.shape.size();
    shape({tensor.boxes.data() + *chunk * 2 * dimensions, dimensions});
  } else {
    writer_.none();
  }
  close_object();
  phrase(item_open_, [this] {
    open_object(kFilesystemModule, "_StorageInfo");
    writer_.shared_text("relative_path");
  });
  file(location.file);
  phrase(item_offset_, [this] { writer_.shared_text("offset"); });
  writer_.integer(static_cast<std::int64_t>(location.offset));
  phrase(item_length_, [this] { writer_.shared_text("length"); });
  writer_.integer(static_cast<std::int64_t>(location.length));
  if (!catalog_.transforms.empty()) transforms(fqn_of_key(key));
  close_object();
}

void MetadataWriter::file(std::uint32_t number) {
  if (file_memos_[number]) return writer_.reference(*file_memos_[number]);
  slot(Slot::Kind::kFile, number);
  file_memos_[number] = writer_.memoize();
}

// The catalog holds a key's transforms as text: "first, second".
void MetadataWriter::transforms(const std::string& fqn) {
  const auto found = catalog_.transforms.find(fqn);
  if (found == catalog_.transforms.end()) return;
  writer_.shared_text("transform_descriptors");
  writer_.empty_list();
  constexpr std::string_view kSeparator = ", ";
  std::string_view names = found->second;
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(kSeparator), names.size());
    writer_.shared_text(names.substr(0, end));
    writer_.append();
    names.remove_prefix(std::min(end + kSeparator.size(), names.size()));
  }
}

Result<void> MetadataWriter::planner_data() {
  for (const auto& [name, value] : catalog_.extra) {
    if (name == "planner_data") return pickle::write_value(writer_, value);
  }
  if (catalog_.paths.empty() && !catalog_.keys.empty()) return writer_.none(), Result<void>();
  writer_.empty_dict();
  if (catalog_.paths.empty()) return {};
  writer_.mark();
  for (const auto& [fqn, path] : catalog_.paths) {
    writer_.text(fqn);
    if (path.size() > 3) writer_.mark();
    for (const PathElement& element : path) {
      if (const auto* text = std::get_if<std::string>(&element)) {
        writer_.shared_text(*text);
      } else {
        writer_.integer(std::get<std::int64_t>(element));
      }
    }
    if (path.size() > 3) {
      writer_.tuple_since_mark();
    } else {
      writer_.tuple(path.size());
    }
  }
  writer_.set_items();
  return {};
}

void MetadataWriter::storage_meta() {
  open_object(kMetadataModule, "StorageMeta");
  writer_.shared_text("checkpoint_id");
  slot(Slot::Kind::kCheckpointId);
  writer_.shared_text("save_id");
  slot(Slot::Kind::kSaveId);
  writer_.shared_text("load_id");
  writer_.none();
  writer_.shared_text("modules");
  writer_.empty_list();
  close_object();
}

Result<MetadataTemplate> MetadataTemplate::make(const Catalog& catalog, std::uint64_t compact_items_min) {
  CAIRN_TRY_ASSIGN(MetadataTemplate metadata, MetadataWriter(catalog).write());
  metadata.compact_ = compact_catalog::compact(catalog, compact_items_min);
  return metadata;
}

std::string MetadataTemplate::render(std::string_view save_id, std::string_view checkpoint_id,
                                     std::span<const std::string> files) const {
  assert(files.size() == file_count_);
  constexpr std::size_t kTextOverhead = 9;
  std::size_t bytes = opcodes_.size() + save_id.size() + checkpoint_id.size() + kTextOverhead * slots_.size();
  for (const std::string& file : files) bytes += file.size();
  bytes += compact_catalog::catalog_bytes(compact_);
  std::string out;
  out.reserve(bytes);
  std::size_t done = 0;
  for (const Slot& slot : slots_) {
    out.append(opcodes_, done, slot.place - done);
    done = slot.place;
    switch (slot.kind) {
      case Slot::Kind::kSaveId: append_text(out, save_id); break;
      case Slot::Kind::kCheckpointId: append_text(out, checkpoint_id); break;
      case Slot::Kind::kFile: append_text(out, files[slot.file]); break;
    }
  }
  out.append(opcodes_, done);
  compact_catalog::append_catalog(out, compact_);
  return out;
}

void MetadataTemplate::append_to(std::string& out) const {
  manifest::append_text(out, opcodes_);
  manifest::append_varint(out, file_count_);
  manifest::append_varint(out, slots_.size());
  std::size_t done = 0;
  for (const Slot& slot : slots_) {
    manifest::append_varint(out, slot.place - done);
    done = slot.place;
    out.push_back(static_cast<char>(slot.kind));
    if (slot.kind == Slot::Kind::kFile) manifest::append_varint(out, slot.file);
  }
  manifest::append_text(out, compact_.bytes);
  manifest::append_varint(out, compact_.directory_bytes);
  manifest::append_varint(out, compact_.key_count);
  manifest::append_varint(out, compact_.version);
}

Result<MetadataTemplate> MetadataTemplate::read(manifest::CodedReader& reader) {
  MetadataTemplate metadata;
  CAIRN_TRY_ASSIGN(metadata.opcodes_, reader.counted_text());
  CAIRN_TRY_ASSIGN(metadata.file_count_, reader.varint());
  // The process that renders the template makes a name for each file.
  if (metadata.file_count_ > metadata.opcodes_.size()) return reader.damaged("more files than metadata");
  CAIRN_TRY_ASSIGN(const std::uint64_t slot_count, reader.count());
  std::size_t done = 0;
  for (std::uint64_t i = 0; i < slot_count; ++i) {
    Slot& slot = metadata.slots_.emplace_back();
    CAIRN_TRY_ASSIGN(const std::uint64_t distance, reader.varint());
    if (distance > metadata.opcodes_.size() - done) return reader.damaged("a slot behind the metadata's end");
    slot.place = done += distance;
    CAIRN_TRY_ASSIGN(const std::uint8_t kind, reader.byte());
    if (kind > static_cast<std::uint8_t>(Slot::Kind::kFile)) return reader.damaged("a slot of an unknown kind");
    slot.kind = static_cast<Slot::Kind>(kind);
    if (slot.kind != Slot::Kind::kFile) continue;
    CAIRN_TRY_ASSIGN(const std::uint64_t file, reader.varint());
    if (file >= metadata.file_count_) return reader.damaged("a slot for a file beyond the number of files");
    slot.file = static_cast<std::uint32_t>(file);
  }
  CAIRN_TRY_ASSIGN(metadata.compact_.bytes, reader.counted_text());
  CAIRN_TRY_ASSIGN(metadata.compact_.directory_bytes, reader.varint());
  CAIRN_TRY_ASSIGN(metadata.compact_.key_count, reader.varint());
  CAIRN_TRY_ASSIGN(const std::uint64_t version, reader.varint());
  if (version == 0 || version > compact_catalog::kVersionWithStrides) {
    return reader.damaged("a compact catalog of an unknown version");
  }
  metadata.compact_.version = static_cast<std::uint32_t>(version);
  if (metadata.compact_.directory_bytes > metadata.compact_.bytes.size()) {
    return reader.damaged("a directory larger than its compact catalog");
  }
  metadata.compact_.file_count = static_cast<std::uint32_t>(metadata.file_count_);
  return metadata;
}

}  // namespace cairn::dcp
