// Reads any bytes as a file of torch.save, of a state and of one item of a state, and as the pickle of an archive and
// of a legacy file. Every entry lies in the file, every window in its record. The archive of an entry alone decodes to
// the entry's value.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "core/little_endian.h"
#include "decoding_bounds.h"
#include "format/torch_file/archive_writer.h"
#include "format/torch_file/legacy_file.h"
#include "format/torch_file/state_file.h"
#include "format/torch_file/value_archive.h"
#include "tensor_record_check.h"

namespace state_file_fuzz {

namespace {

using cairn::MemorySource;
using cairn::Result;
using cairn::Value;
using cairn::torch_file::StateFile;

// The decoding of each of the first entries is checked: an input may hold many.
constexpr std::size_t kEntriesMax = 64;

// Compares encodings, because NaNs are unequal as values.
void check_payload(const std::string& payload, const Value& value) {
  const Result<Value> decoded = cairn::torch_file::decode_value(MemorySource(std::as_bytes(std::span(payload))));
  const Result<std::string> expected = cairn::torch_file::encode_value(value);
  if (!decoded || !expected) return;  // the archive is smaller than the file, and its budget, too
  const Result<std::string> actual = cairn::torch_file::encode_value(*decoded);
  if (!actual || *actual != *expected) std::abort();
}

void check_entry(const StateFile& file, const StateFile::Entry& entry, std::size_t size) {
  if (file.find(entry.fqn) != &entry) std::abort();
  const StateFile::Range range = file.range(entry);
  if (range.offset > size || range.length > size - range.offset) std::abort();
  if (entry.tensor) {
    const auto tensor = file.tensor(entry);
    if (tensor) cairn::fuzz::check_tensor_record(*tensor, size);
  }
  const auto value = [&] {
    const cairn::fuzz::DecodingBounds bounds(size);
    return file.value(entry);
  }();
  const auto payload = [&] {
    const cairn::fuzz::DecodingBounds bounds(size);
    return file.payload(entry);
  }();
  if (value && payload) check_payload(*payload, *value);
}

void check_file(const StateFile& file, std::size_t size) {
  {
    using cairn::fuzz::DecodingBounds;
    const DecodingBounds bounds(size, DecodingBounds::kBytesPerByteOfState);
    (void)file.shape();
  }
  std::size_t count = 0;
  for (const StateFile::Entry& entry : file.entries()) {
    if (++count > kEntriesMax) break;
    check_entry(file, entry, size);
  }
}

void read(std::span<const std::byte> bytes) {
  const MemorySource source(bytes);
  {
    const cairn::fuzz::DecodingBounds bounds(bytes.size());
    (void)cairn::torch_file::read_legacy_file(source);
  }
  using cairn::fuzz::DecodingBounds;
  for (const bool is_item : {false, true}) {
    const auto file = [&] {
      const DecodingBounds bounds(bytes.size(), DecodingBounds::kBytesPerByteOfState);
      return is_item ? StateFile::open_item(source, "item") : StateFile::open(source);
    }();
    if (file) check_file(**file, bytes.size());
  }
}

// Storages 0 and 1 of 24 bytes each belong to the pickle.
std::string archive_around(std::string_view pickle) {
  const std::string storage(24, '\x3F');
  cairn::torch_file::ArchiveWriter archive;
  archive.add("archive/data.pkl", pickle);
  archive.add("archive/data/0", storage);
  archive.add("archive/data/1", storage);
  return std::move(archive).finish();
}

std::string legacy_file_around(std::string_view pickle) {
  constexpr std::string_view kMagic("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.", 15);
  constexpr std::string_view kVersion("\x80\x02M\xe9\x03.", 6);
  constexpr std::string_view kHost("\x80\x02}.", 4);
  constexpr std::string_view kKeys("\x80\x02](X\x01\x00\x00\x00\x30X\x01\x00\x00\x00\x31\x65.", 18);
  constexpr std::string_view kStorage("\x06\x00\x00\x00\x00\x00\x00\x00", 8);
  const std::string elements(24, '\x3F');
  std::string file(kMagic);
  file.append(kVersion).append(kHost).append(pickle).append(kKeys);
  file.append(kStorage).append(elements).append(kStorage).append(elements);
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  read(bytes);
  for (const std::string& file : {archive_around(text), legacy_file_around(text)}) {
    read(std::as_bytes(std::span(file)));
  }
  return 0;
}

}  // namespace state_file_fuzz
