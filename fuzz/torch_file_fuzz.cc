// Reads any bytes as a tensor item and as a value archive. A tensor's window must lie in its record. A plain value must
// survive Cairn's own encoding. Padding must keep an archive's value.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "decoding_bounds.h"
#include "format/torch_file/tensor_reader.h"
#include "format/torch_file/value_archive.h"
#include "format/zip/record_writer.h"
#include "tensor_record_check.h"

namespace torch_file_fuzz {

namespace {

using cairn::MemorySource;
using cairn::Result;
using cairn::Value;

// Compares encodings, because NaNs are unequal as values.
void check_value(const Value& value) {
  const Result<std::string> encoded = cairn::torch_file::encode_value(value);
  if (!encoded) return;
  const auto decoded = cairn::torch_file::decode_value(MemorySource(std::as_bytes(std::span(*encoded))));
  if (!decoded) std::abort();
  const Result<std::string> again = cairn::torch_file::encode_value(*decoded);
  if (!again || *again != *encoded) std::abort();
}

// Padding must keep the archive's value. `value`: of the archive without padding; null if the archive is unreadable.
void check_padding(std::span<const std::byte> bytes, const Value* value) {
  const std::string archive(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::uint64_t length = cairn::torch_file::padded_length(archive.size() + 1);
  const Result<std::string> padded = cairn::torch_file::pad_archive(archive, length);
  if (!padded) return;
  if (padded->size() != length) std::abort();
  const auto decoded = cairn::torch_file::decode_value(MemorySource(std::as_bytes(std::span(*padded))));
  if (value == nullptr) return;
  if (!decoded) std::abort();
  const Result<std::string> before = cairn::torch_file::encode_value(*value);
  const Result<std::string> after = cairn::torch_file::encode_value(*decoded);
  if (before.has_value() != after.has_value() || (before && *before != *after)) std::abort();
}

void read(std::span<const std::byte> bytes) {
  const MemorySource source(bytes);
  const auto tensor = [&] {
    const cairn::fuzz::DecodingBounds bounds(bytes.size());
    return cairn::torch_file::read_tensor_item(source);
  }();
  if (tensor) {
    cairn::fuzz::check_tensor_record(*tensor, bytes.size());
    static_cast<void>(tensor->contiguous());
  }
  const auto value = [&] {
    const cairn::fuzz::DecodingBounds bounds(bytes.size());
    return cairn::torch_file::decode_value(source);
  }();
  if (value) check_value(*value);
  {
    const cairn::fuzz::DecodingBounds bounds(bytes.size());
    (void)cairn::torch_file::describe_value(source);
  }
  check_padding(bytes, value ? &*value : nullptr);
}

// Returns an archive with the given pickle, a CRC that says "not computed", and storages 0 and 1 of 24 bytes.
std::string archive_around(std::span<const std::byte> pickle) {
  const std::string storage(24, '\x3F');
  const std::string_view text(reinterpret_cast<const char*>(pickle.data()), pickle.size());
  std::vector<cairn::zip::Record> records;
  std::string archive;
  const auto grow = [&](std::size_t bytes) {
    archive.resize(archive.size() + bytes);
    return reinterpret_cast<std::byte*>(archive.data()) + archive.size() - bytes;
  };
  const auto add = [&](std::string_view name, std::string_view bytes) {
    const cairn::zip::Record& record = records.emplace_back(cairn::zip::Record{name, bytes.size(), archive.size()});
    cairn::zip::render_local_header(record, grow(cairn::zip::local_header_bytes(record)));
    archive += bytes;
  };
  add("archive/data.pkl", text);
  add("archive/data/0", storage);
  add("archive/data/1", storage);
  cairn::zip::End end{records.size(), archive.size(), 0};
  for (const auto& record : records) {
    cairn::zip::render_directory_entry(record, grow(cairn::zip::directory_entry_bytes(record)));
  }
  end.directory_bytes = archive.size() - end.directory_offset;
  cairn::zip::render_end(end, grow(cairn::zip::end_bytes(end)));
  return archive;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  read(bytes);
  const std::string archive = archive_around(bytes);
  read(std::as_bytes(std::span(archive)));
  return 0;
}

}  // namespace torch_file_fuzz
