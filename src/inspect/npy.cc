// 1. A hidden file beside the target gets the header; several threads then write the elements at their offsets.
// 2. The file is synced, renamed to the target's name, and the directory synced.
// 3. If the storage of the checkpoint hangs, the calling thread removes the hidden file.
#include <cairn/inspect.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "checkpoint/open_calls.h"
#include "checkpoint/source_files.h"
#include "checkpoint/tensor_windows.h"
#include "core/checked.h"
#include "core/conversion.h"
#include "inspect/tensor_pass.h"
#include "os/call_within.h"
#include "storage/storage.h"

namespace cairn {
namespace {

using storage::Watch;

constexpr std::chrono::seconds kRemovalLimit{2};

// A dtype that NumPy has, and NumPy's name of it.
struct NumpyDType {
  DType dtype;
  const char* name;
};

std::optional<NumpyDType> numpy_dtype(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return NumpyDType{dtype, "<f8"};
    case DType::kFloat16: return NumpyDType{dtype, "<f2"};
    case DType::kComplex32:
    case DType::kComplex64: return NumpyDType{DType::kComplex64, "<c8"};
    case DType::kComplex128: return NumpyDType{dtype, "<c16"};
    case DType::kUInt8: return NumpyDType{dtype, "|u1"};
    case DType::kInt8: return NumpyDType{dtype, "|i1"};
    case DType::kInt16: return NumpyDType{dtype, "<i2"};
    case DType::kInt32: return NumpyDType{dtype, "<i4"};
    case DType::kInt64: return NumpyDType{dtype, "<i8"};
    case DType::kBool: return NumpyDType{dtype, "|b1"};
    case DType::kUInt16: return NumpyDType{dtype, "<u2"};
    case DType::kUInt32: return NumpyDType{dtype, "<u4"};
    case DType::kUInt64: return NumpyDType{dtype, "<u8"};
    default:
      if (!is_convertible(dtype, DType::kFloat32)) return std::nullopt;
      return NumpyDType{DType::kFloat32, "<f4"};
  }
}

std::string header_of(const char* dtype, const Extents& shape) {
  constexpr std::size_t kAlignment = 64;
  constexpr std::size_t kPrefixBytes = 10;  // magic, version, and the length in two bytes
  std::string text = std::string("{'descr': '") + dtype + "', 'fortran_order': False, 'shape': (";
  for (const std::int64_t size : shape) text += std::to_string(size) + ",";
  text += "), }";
  text.resize(align_up(kPrefixBytes + text.size() + 1, kAlignment) - kPrefixBytes - 1, ' ');
  text += '\n';
  std::string header = "\x93NUMPY";  // at most 64 dimensions: the length fits in two bytes
  header += {'\x01', '\x00', static_cast<char>(text.size() & 0xFF), static_cast<char>(text.size() >> 8)};
  return header + text;
}

std::string partial_name(const std::string& name) {
  std::random_device random;
  return "." + name + "." + std::to_string(random()) + std::to_string(random()) + ".partial";
}

// The file while it is written; shared by the calling thread, which removes it if the working thread hangs.
struct PartialFile {
  std::filesystem::path directory;
  std::string name;
  std::string final_name;
  bool overwrite;
};

Error existing_file(const PartialFile& file) {
  return Error(ErrorCode::kInvalidArgument,
               "the file exists: choose another name, or replace the file (option overwrite)")
      .file((file.directory / file.final_name).string());
}

Result<void> check_apart_from_source(const Checkpoint& checkpoint, const PartialFile& file, Watch& watch) {
  const std::filesystem::path target = file.directory / file.final_name;
  const storage::OperationWatch::Call call(*watch.operations, storage::OperationKind::kNames, "looking for",
                                           target.string());
  if (!checkpointer::source_file_at(checkpoint, target)) return {};
  return Error(ErrorCode::kInvalidArgument, "the file belongs to the checkpoint: choose another name")
      .file(target.string());
}

// (2)
Result<void> give_name(storage::Storage& storage, const PartialFile& file) {
  if (file.overwrite) return storage.replace(file.name, file.final_name);
  Result<void> published = storage.publish(file.name, file.final_name);
  if (!published && published.error().error_number() == EEXIST) return existing_file(file);
  return published;
}

// Runs on the working thread, and calls neither function of `options`.
Result<void> write_npy(const Checkpoint& checkpoint, const CatalogTensor& tensor, const PartialFile& file,
                       const TensorPassOptions& options, Watch& watch) {
  const auto target = numpy_dtype(tensor.dtype);
  if (!target) {
    return Error(ErrorCode::kUnsupported, "NumPy has no dtype for the tensor")
        .key(tensor.fqn)
        .actual(name_of(tensor.dtype));
  }
  const std::string header = header_of(target->name, tensor.shape);
  CAIRN_TRY_ASSIGN(const std::int64_t count, element_count(tensor.shape));
  const auto bytes_each = item_bytes(target->dtype);
  const auto bytes = checked_multiply<std::uint64_t>(static_cast<std::uint64_t>(count), bytes_each);
  const auto size = bytes ? checked_add<std::uint64_t>(*bytes, header.size()) : std::nullopt;
  if (!size) return Error(ErrorCode::kCorrupt, "the tensor is larger than any file").key(tensor.fqn);
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::Storage> storage,
                   checkpointer::watched_directories(watch.operations)(file.directory));
  if (!file.overwrite && storage->open(file.final_name, true)) return existing_file(file);
  CAIRN_TRY(check_apart_from_source(checkpoint, file, watch));
  std::unique_ptr<storage::WritableFile> out;
  const auto write = [&](const checkpointer::TensorWindow& window) -> Result<void> {
    const std::uint64_t offset = header.size() + static_cast<std::uint64_t>(window.range.begin) * bytes_each;
    if (tensor.dtype == target->dtype) return out->write_at(offset, window.bytes);
    std::vector<std::byte> converted(static_cast<std::size_t>(window.range.count()) * bytes_each);
    convert(tensor.dtype, target->dtype, {window.bytes.data(), 1, converted.data(), 1}, window.range.count());
    return out->write_at(offset, converted);
  };
  const auto write_all = [&]() -> Result<void> {
    CAIRN_TRY_ASSIGN(out, storage->create(file.name, {.size = *size}));
    CAIRN_TRY(out->write_at(0, std::as_bytes(std::span(header))));  // (1)
    CAIRN_TRY(checkpointer::for_each_window(checkpoint, tensor, options, watch, write));
    if (watch.stop.is_set()) return Error(ErrorCode::kCancelled, "the export was given up");
    CAIRN_TRY(out->finish(*size, Durability::kDurable));  // (2)
    if (watch.stop.is_set()) return Error(ErrorCode::kCancelled, "the export was given up");
    CAIRN_TRY(give_name(*storage, file));
    return storage->sync();
  };
  Result<void> written = write_all();
  if (!written) (void)storage->remove(file.name);  // the first error counts
  return written;
}

Result<void> export_watched(const std::filesystem::path& directory, const std::string& key, const PartialFile& file,
                            const TensorPassOptions& options, Watch& watch) {
  CAIRN_TRY_ASSIGN(const Checkpoint checkpoint, checkpointer::open_source(directory, watch));
  CAIRN_TRY_ASSIGN(const CatalogTensor tensor, checkpointer::require_tensor(checkpoint, key));
  return write_npy(checkpoint, tensor, file, options, watch);
}

}  // namespace

Result<void> export_npy(const std::filesystem::path& directory, std::string_view key, const std::filesystem::path& file,
                        const TensorPassOptions& options, bool overwrite) {
  const std::string name = file.filename().string();
  const std::filesystem::path parent = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  const PartialFile partial{parent, partial_name(name), name, overwrite};
  const auto pass = [directory, key = std::string(key), partial](Watch& watch, const TensorPassOptions& copied) {
    return export_watched(directory, key, partial, copied, watch);
  };
  Result<void> exported =
      checkpointer::watched_pass(WorkKind::kExport, directory, "exporting the tensor", options, pass);
  const bool may_hang = !exported && (exported.error().code() == ErrorCode::kUnavailable ||
                                      exported.error().code() == ErrorCode::kCancelled);
  if (may_hang) {  // (3)
    os::call_within(kRemovalLimit, [partial] {
      std::error_code ignored;
      return std::filesystem::remove(partial.directory / partial.name, ignored);
    });
  }
  return exported;
}

}  // namespace cairn
