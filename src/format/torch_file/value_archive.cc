#include "format/torch_file/value_archive.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
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
#include "format/torch_file/archive_writer.h"
#include "format/torch_file/checked_storages.h"
#include "format/torch_file/legacy_file.h"
#include "format/torch_file/opaque_storages.h"
#include "format/torch_file/storage_walk.h"
#include "format/torch_file/tensor_pickle.h"
#include "format/torch_file/tensor_resolver.h"
#include "format/torch_file/weights_only.h"

namespace cairn::torch_file {
namespace {

using pickle::Graph;
using pickle::Kind;
using pickle::Node;

// --- Encoding

// Pickles tensors as windows of storages. Numbers and collects the storages.
class StorageCollector final : public pickle::TensorWriter {
 public:
  // In the order of the storages' numbers. The pointers are valid while the caller's value lives.
  const std::vector<const std::string*>& storages() const { return storages_; }

  Result<void> write_tensor(pickle::Writer& writer, const Array& tensor) override {
    return write(writer, tensor, false);
  }
  Result<bool> write_object(pickle::Writer& writer, const Object& object) override {
    const Array* const tensor = tensor_requiring_grad(object);
    if (tensor != nullptr) CAIRN_TRY(write(writer, *tensor, true));
    return tensor != nullptr;
  }

 private:
  Result<void> write(pickle::Writer& writer, const Array& tensor, bool requires_grad) {
    CAIRN_TRY(check(tensor));
    const std::string key = std::to_string(storages_.size());
    torch_file::write_tensor(writer, {tensor.dtype, key, tensor.data.size(), 0, tensor.shape,
                                      row_major_strides(tensor.shape), requires_grad});
    storages_.push_back(&tensor.data);
    return {};
  }

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

  std::vector<const std::string*> storages_;
};

// --- Decoding

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
  if (const std::string unknown = first_refused_class(value); !unknown.empty()) {
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
  const std::string prefix(kArchivePrefix);
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
  const CheckedStorages storages(source,
                                 [&archive](std::string_view key) { return CheckedStorages::find_in(archive, key); });
  const OpaqueStorages opaque(storages, big_endian);
  TensorResolver resolver(storages, opaque, big_endian);
  return read_pickle(archive, source.size(), resolver);
}

Result<Value> describe_value(const ByteSource& source) {
  CAIRN_TRY_ASSIGN(const ArchiveReader archive, ArchiveReader::open(source));
  CAIRN_TRY_ASSIGN(const bool big_endian, archive.big_endian());
  if (big_endian) return Error(ErrorCode::kUnsupported, "an archive of a different byte order than this host's");
  StorageDescriber resolver;
  return read_pickle(archive, source.size(), resolver);
}

Result<void> check_storages(const ByteSource& source) {
  std::array<std::byte, kLegacyMagicBytes> buffer{};
  const std::span<std::byte> first = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), source.size()));
  CAIRN_TRY(source.read_at(0, first));
  const auto passes = [](const Error& error) { return error.code() == ErrorCode::kUnsupported; };
  if (begins_legacy_file(first)) {
    const Result<LegacyFile> legacy = read_legacy_file(source);
    return legacy || passes(legacy.error()) ? Result<void>() : legacy.error();
  }
  const Result<ArchiveReader> archive = ArchiveReader::open(source);
  if (!archive) return passes(archive.error()) ? Result<void>() : archive.error();
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> pickled, archive->read("data.pkl"));
  const Result<Graph> graph = pickle::parse(pickled);
  if (!graph) return passes(graph.error()) ? Result<void>() : graph.error();
  return StorageWalk(*graph).walk(graph->root(), [&](const StorageWalk::Found& found) -> Result<void> {
    if (!found.bytes) return {};
    CAIRN_TRY_ASSIGN(const zip::DirectoryEntry* record, archive->require(storage_record_name(found.key)));
    return check_storage_bytes(found.key, *found.bytes, record->size);
  });
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
