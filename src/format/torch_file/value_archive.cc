#include "format/torch_file/value_archive.h"

#include <cairn/seeded_hash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/byte_budget.h"
#include "core/checked.h"
#include "core/checksum.h"
#include "core/little_endian.h"
#include "core/region.h"
#include "core/stored_elements.h"
#include "format/pickle/machine.h"
#include "format/pickle/value_reader.h"
#include "format/pickle/value_writer.h"
#include "format/pickle/writer.h"
#include "format/torch_file/archive_reader.h"
#include "format/torch_file/storage_class.h"
#include "format/torch_file/tensor_node.h"
#include "format/zip/record_writer.h"

namespace cairn::torch_file {
namespace {

using pickle::Graph;
using pickle::Kind;
using pickle::Node;

constexpr std::string_view kPrefix = "archive/";
// Storages begin at multiples of this number of bytes from the start of the archive, as torch.load(mmap=True) prefers.
constexpr std::uint64_t kStorageAlignment = 64;

// --- Encoding

// Pickles tensors as windows of storages. Numbers and collects the storages.
class StorageCollector final : public pickle::TensorWriter {
 public:
  // In the order of the storages' numbers. The pointers are valid while the caller's value lives.
  const std::vector<const std::string*>& storages() const { return storages_; }

  Result<void> write_tensor(pickle::Writer& writer, const Array& tensor) override {
    CAIRN_TRY(check(tensor));
    const StorageClass storage = storage_class_of(tensor.dtype);
    const std::size_t element_bytes = storage.untyped ? 1 : item_bytes(tensor.dtype);
    writer.global("torch._utils", storage.untyped ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
    writer.mark();
    writer.mark();
    writer.text("storage");
    writer.global(storage.module, storage.name);
    writer.text(std::to_string(storages_.size()));
    writer.text("cpu");
    writer.integer(static_cast<std::int64_t>(tensor.data.size() / element_bytes));
    writer.tuple_since_mark();
    writer.persistent();
    writer.integer(0);
    write_extents(writer, tensor.shape);
    write_extents(writer, row_major_strides(tensor.shape));
    writer.boolean(false);
    writer.global("collections", "OrderedDict");
    writer.empty_tuple();
    writer.reduce();
    if (storage.untyped) writer.global("torch", name_of(tensor.dtype));
    writer.tuple_since_mark();
    writer.reduce();
    storages_.push_back(&tensor.data);
    return {};
  }

 private:
  static Result<void> check(const Array& tensor) {
    if (is_quantized(tensor.dtype)) {
      return Error(ErrorCode::kUnsupported, "a quantised tensor has no native form").actual(name_of(tensor.dtype));
    }
    CAIRN_TRY_ASSIGN(const std::int64_t elements, element_count(tensor.shape));
    const auto bytes = checked_multiply(static_cast<std::uint64_t>(elements), std::uint64_t{item_bytes(tensor.dtype)});
    if (bytes == tensor.data.size()) return {};
    return Error(ErrorCode::kInvalidArgument, "a tensor whose bytes do not fit its shape")
        .expected(to_string(tensor.shape) + " of " + std::string(name_of(tensor.dtype)))
        .actual(std::to_string(tensor.data.size()) + " bytes");
  }

  static void write_extents(pickle::Writer& writer, const Extents& extents) {
    if (extents.size() > 3) writer.mark();
    for (const std::int64_t value : extents) writer.integer(value);
    if (extents.size() > 3) return writer.tuple_since_mark();
    writer.tuple(extents.size());
  }

  std::vector<const std::string*> storages_;
};

// Appends records to a string, and the directory behind the last record.
class ArchiveWriter {
 public:
  // `alignment` of `bytes`, from the start of the archive; 1 for none.
  void add(std::string name, std::string_view bytes, std::uint64_t alignment = 1) {
    Entry& entry = entries_.emplace_back();
    entry.name = std::move(name);
    entry.size = bytes.size();
    entry.header_offset = archive_.size();
    entry.crc = crc32(std::as_bytes(std::span(bytes)));
    const zip::Record record = record_of(entry);
    zip::PaddingBytes padding = 0;
    const std::uint64_t unpadded = archive_.size() + zip::local_header_bytes(record);
    if (unpadded % alignment != 0)
      padding = static_cast<zip::PaddingBytes>(align_up(unpadded + 4, alignment) - unpadded);
    zip::render_local_header(record, grow(zip::local_header_bytes(record, padding)), padding);
    archive_.append(bytes);
  }

  std::string finish() && {
    zip::End end;
    end.count = entries_.size();
    end.directory_offset = archive_.size();
    for (const Entry& entry : entries_) {
      const zip::Record record = record_of(entry);
      zip::render_directory_entry(record, grow(zip::directory_entry_bytes(record)));
    }
    end.directory_bytes = archive_.size() - end.directory_offset;
    zip::render_end(end, grow(zip::end_bytes(end)));
    return std::move(archive_);
  }

  void reserve(std::size_t bytes) { archive_.reserve(bytes); }

 private:
  struct Entry {
    std::string name;
    std::uint64_t size = 0;
    std::uint64_t header_offset = 0;
    std::uint32_t crc = 0;
  };
  static zip::Record record_of(const Entry& entry) { return {entry.name, entry.size, entry.header_offset, entry.crc}; }

  std::byte* grow(std::size_t bytes) {
    archive_.resize(archive_.size() + bytes);
    return reinterpret_cast<std::byte*>(archive_.data()) + archive_.size() - bytes;
  }

  std::string archive_;
  std::vector<Entry> entries_;
};

// --- Decoding

// Of an Object with two arguments.
constexpr std::uint64_t kCallBytes = sizeof(Object) + 2 * sizeof(Value) + 64;

// Describes storages by their persistent ids.
class StorageDescriber final : public pickle::Resolver {
 public:
  Result<std::optional<Value>> resolve(const Graph& graph, Node node, ByteBudget& budget) override {
    if (!graph.is(node, Kind::kPersistent)) return std::optional<Value>();
    CAIRN_TRY(budget.charge(kCallBytes));
    auto object = std::make_unique<Object>();
    object->module = "torch.storage";
    object->name = "_load_storage";
    CAIRN_TRY_ASSIGN(Value id, pickle::to_value(graph, graph.persistent_id(node), budget));
    object->arguments = Tuple{{std::move(id)}};
    return std::optional<Value>(std::move(object));
  }
};

// Makes each tensor a row-major copy of its window. Views may share a storage, and an expanded tensor repeats elements:
// the budget is charged for each copy.
class TensorResolver final : public pickle::Resolver {
 public:
  TensorResolver(const ArchiveReader& archive, bool big_endian) : archive_(archive), big_endian_(big_endian) {}

  Result<std::optional<Value>> resolve(const Graph& graph, Node node, ByteBudget& budget) override {
    // A storage that an unknown call takes as an argument.
    if (graph.is(node, Kind::kPersistent)) return StorageDescriber().resolve(graph, node, budget);
    CAIRN_TRY_ASSIGN(const std::optional<TensorNode> tensor, read_tensor_node(graph, node));
    if (!tensor || is_quantized(tensor->dtype)) return std::optional<Value>();
    CAIRN_TRY_ASSIGN(Array array, read_tensor(*tensor, budget));
    if (!tensor->requires_grad) return std::optional<Value>(std::move(array));
    CAIRN_TRY(budget.charge(kCallBytes));
    // An Array has no requires_grad. The Object keeps the flag: a resumed training must not lose requires_grad
    // silently.
    const Node callable = graph.callable(node);
    auto object = std::make_unique<Object>();
    object->module = graph.module(callable);
    object->name = graph.name(callable);
    object->arguments = Tuple{{Value(std::move(array)), Value(true)}};
    return std::optional<Value>(std::move(object));
  }

 private:
  Result<Array> read_tensor(const TensorNode& tensor, ByteBudget& budget) {
    Array array;
    array.kind = Array::Kind::kTensor;
    array.dtype = tensor.dtype;
    array.shape = tensor.sizes;
    CAIRN_TRY_ASSIGN(const std::int64_t elements, element_count(tensor.sizes));
    const auto bytes = checked_multiply(static_cast<std::uint64_t>(elements), tensor.element_bytes());
    const std::uint64_t beside = sizeof(Array) + tensor.sizes.size() * sizeof(std::int64_t);
    if (auto charged = budget.charge(checked_add(bytes.value_or(UINT64_MAX), beside).value_or(UINT64_MAX)); !charged) {
      return std::move(charged).error().while_doing("reading a tensor of " + to_string(tensor.sizes) + " " +
                                                    std::string(name_of(tensor.dtype)));
    }
    CAIRN_TRY_ASSIGN(const std::vector<std::byte>* storage, storage_of(tensor));
    if (*bytes == 0) return array;
    array.data.resize(*bytes);
    const std::span<std::byte> out = std::as_writable_bytes(std::span(array.data));
    const Region region(tensor.sizes, row_major_strides(tensor.sizes), tensor.strides);
    gather(region, tensor.element_bytes(), storage->data() + tensor.storage_offset * tensor.element_bytes(), 0, out);
    if (big_endian_) swap_bytes(tensor.dtype, out);
    if (tensor.conjugate) negate_imaginary(tensor.dtype, out);
    if (tensor.negative) negate(tensor.dtype, out);
    return array;
  }

  // Reads and checks each storage once, however many tensors are views of the storage.
  Result<const std::vector<std::byte>*> storage_of(const TensorNode& tensor) {
    const auto known = storages_.find(tensor.storage_key);
    if (known != storages_.end()) return check_size(tensor, known->second);
    std::string name = "data/";
    name += tensor.storage_key;
    CAIRN_TRY_ASSIGN(std::vector<std::byte> bytes, archive_.read(name));
    return check_size(tensor, storages_.emplace(tensor.storage_key, std::move(bytes)).first->second);
  }

  static Result<const std::vector<std::byte>*> check_size(const TensorNode& tensor,
                                                          const std::vector<std::byte>& storage) {
    if (storage.size() == tensor.storage_bytes) return &storage;
    return Error(ErrorCode::kCorrupt, "a storage record of the wrong size")
        .expected(std::to_string(tensor.storage_bytes) + " bytes")
        .actual(std::to_string(storage.size()) + " bytes in data/" + std::string(tensor.storage_key));
  }

  const ArchiveReader& archive_;
  bool big_endian_;
  std::unordered_map<std::string_view, std::vector<std::byte>, SeededHash> storages_;  // by keys in the pickle
};

// Adds `shift` to a 32-bit offset, unless the offset says that the zip64 record holds the value. False if the sum does
// not fit.
bool shift_old_offset(std::byte* field, std::uint64_t shift) {
  const std::uint64_t value = load_little_endian<std::uint32_t>(field);
  if (value == 0xFFFFFFFF) return true;
  if (value + shift >= 0xFFFFFFFF) return false;
  store_little_endian(field, static_cast<std::uint32_t>(value + shift));
  return true;
}

void shift_offset(std::byte* field, std::uint64_t shift) {
  store_little_endian(field, load_little_endian<std::uint64_t>(field) + shift);
}

}  // namespace

Result<std::string> encode_value(const Value& value) {
  if (const std::string unknown = first_unknown_class(value); !unknown.empty()) {
    return Error(ErrorCode::kUnsupported, "a value of a class without a native form").actual(unknown);
  }
  pickle::Writer writer(2);
  StorageCollector collector;
  CAIRN_TRY(pickle::write_value(writer, value, &collector));
  writer.stop();
  const std::string pickled = std::move(writer).take();
  ArchiveWriter archive;
  std::size_t bytes = pickled.size() + 512;
  for (const std::string* storage : collector.storages()) bytes += storage->size() + 256;
  archive.reserve(bytes);
  const std::string prefix(kPrefix);
  archive.add(prefix + "data.pkl", pickled);
  for (std::size_t i = 0; i < collector.storages().size(); ++i) {
    archive.add(prefix + "data/" + std::to_string(i), *collector.storages()[i], kStorageAlignment);
  }
  archive.add(prefix + "version", "3\n");
  return std::move(archive).finish();
}

namespace {

// The value in the pickle of `archive`. `source_bytes` is the size of the archive's source.
Result<Value> read_pickle(const ArchiveReader& archive, std::uint64_t source_bytes, pickle::Resolver& resolver) {
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> pickled, archive.read("data.pkl"));
  CAIRN_TRY_ASSIGN(const Graph graph, pickle::parse(pickled));
  ByteBudget budget(source_bytes);
  CAIRN_TRY(budget.charge(graph.memory_bytes()));
  return pickle::to_value(graph, graph.root(), budget, &resolver);
}

}  // namespace

Result<Value> decode_value(const ByteSource& source) {
  CAIRN_TRY_ASSIGN(const ArchiveReader archive, ArchiveReader::open(source));
  CAIRN_TRY_ASSIGN(const bool big_endian, archive.big_endian());
  TensorResolver resolver(archive, big_endian);
  return read_pickle(archive, source.size(), resolver);
}

Result<Value> describe_value(const ByteSource& source) {
  CAIRN_TRY_ASSIGN(const ArchiveReader archive, ArchiveReader::open(source));
  CAIRN_TRY_ASSIGN(const bool big_endian, archive.big_endian());
  if (big_endian) return Error(ErrorCode::kUnsupported, "an archive of a different byte order than this host's");
  StorageDescriber resolver;
  return read_pickle(archive, source.size(), resolver);
}

std::uint64_t padded_length(std::uint64_t length) {
  constexpr std::uint64_t kStepMin = 256;
  constexpr std::uint64_t kLengthMax = std::uint64_t{1} << 62;
  if (length > kLengthMax) return length;  // no archive is that long, and the next class might not fit into 64 bits
  return align_up(length, std::max(kStepMin, std::bit_floor(length) / 8));
}

Result<std::string> pad_archive(std::string archive, std::uint64_t length) {
  const MemorySource source(std::as_bytes(std::span(archive)));
  auto found = zip::read_directory(source);
  if (!found) return Error(ErrorCode::kUnsupported, "only a zip archive can be padded: " + found.error().message());
  const zip::Directory& directory = *found;
  if (length < archive.size()) {
    return Error(ErrorCode::kInvalidArgument, "an archive can't be padded to less than its length")
        .expected("at least " + std::to_string(archive.size()))
        .actual(std::to_string(length));
  }
  const std::uint64_t shift = length - archive.size();
  archive.insert(directory.offset, shift, '\0');
  auto* bytes = reinterpret_cast<std::byte*>(archive.data());
  if (!shift_old_offset(bytes + directory.end_offset + shift + 16, shift)) {
    return Error(ErrorCode::kUnsupported, "an archive that would need other end records");
  }
  if (directory.zip64_end_offset) {
    shift_offset(bytes + *directory.zip64_end_offset + shift + 48, shift);
    shift_offset(bytes + directory.zip64_locator_offset + shift + 8, shift);
  }
  return archive;
}

}  // namespace cairn::torch_file
