// Reads any bytes as a safetensors file, as the header of such a file, as an index, as the sharding info of stock
// torch, and as the checksums and the file set of Cairn. An accepted header covers the
// file exactly, and is the same when it is rendered and read again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "core/little_endian.h"
#include "decoding_bounds.h"
#include "format/safetensors/checksums.h"
#include "format/safetensors/file_set.h"
#include "format/safetensors/header.h"
#include "format/safetensors/index.h"
#include "format/safetensors/save_order.h"
#include "format/safetensors/sharding_info.h"

namespace safetensors_fuzz {

namespace {

using cairn::safetensors::Header;
using cairn::safetensors::kLengthBytes;

// A file whose size is claimed: its header is in memory, and the rest is never read.
class ClaimedFile final : public cairn::ByteSource {
 public:
  ClaimedFile(std::span<const std::byte> bytes, std::uint64_t size) : bytes_(bytes), size_(size) {}
  std::uint64_t size() const override { return size_; }
  cairn::Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) const override {
    return bytes_.read_at(offset, target);
  }

 private:
  cairn::MemorySource bytes_;
  std::uint64_t size_;
};

void check_header(const Header& header, std::uint64_t file_bytes) {
  std::uint64_t place = 0;
  for (const cairn::safetensors::Tensor& tensor : header.tensors) {
    if (tensor.begin != place || tensor.end < place) std::abort();
    place = tensor.end;
  }
  if (header.data_offset + place != file_bytes) std::abort();
  const bool is_read = std::ranges::all_of(header.tensors, [](const auto& it) { return it.unread_type.empty(); });
  const auto text = cairn::safetensors::render_header(header);
  if (text.has_value() != is_read) std::abort();
  if (!text) return;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(*text));
  const auto again = cairn::safetensors::read_header(ClaimedFile(bytes, bytes.size() + place));
  if (!again || again->metadata != header.metadata || again->tensors.size() != header.tensors.size()) std::abort();
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    if (again->tensors[i].name != header.tensors[i].name) std::abort();
    if (!(again->tensors[i].shape == header.tensors[i].shape)) std::abort();
  }
}

void read(const cairn::ByteSource& file, std::size_t input_bytes) {
  const auto header = [&] {
    const cairn::fuzz::DecodingBounds bounds(input_bytes);
    return cairn::safetensors::read_header(file);
  }();
  if (header) check_header(*header, file.size());
}

// The first two bytes are the length of the tensors' bytes, the rest is the header.
void read_with_true_length(std::span<const std::byte> bytes) {
  if (bytes.size() < 2) return;
  const std::uint64_t data_bytes = cairn::load_little_endian<std::uint16_t>(bytes.data());
  const std::span<const std::byte> text = bytes.subspan(2);
  std::vector<std::byte> head(kLengthBytes);
  cairn::store_little_endian(head.data(), std::uint64_t{text.size()});
  head.insert(head.end(), text.begin(), text.end());
  read(ClaimedFile(head, head.size() + data_bytes), bytes.size());
}

void read_index(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto index = [&] {
    const cairn::fuzz::DecodingBounds bounds(bytes.size());
    return cairn::safetensors::read_index(text);
  }();
  if (!index) return;
  const auto rendered = cairn::safetensors::render_index(*index, 0);
  if (!rendered) std::abort();
  const auto again = cairn::safetensors::read_index(*rendered);
  if (!again || again->files != index->files || again->metadata != index->metadata) std::abort();
}

void read_sharding_info(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const cairn::fuzz::DecodingBounds bounds(bytes.size());
  const auto offsets = cairn::safetensors::read_sharding_info(text);
  if (!offsets) return;
  for (const auto& [key, of_chunk] : *offsets) {
    for (const std::int64_t offset : of_chunk) {
      if (key.size() > bytes.size() || offset < 0) std::abort();
    }
  }
}

void read_entries_of_cairn(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const cairn::fuzz::DecodingBounds bounds(bytes.size());
  const cairn::safetensors::ChecksumCoverage coverage{64 * 1024, bytes.size() % 8};
  const auto checksums = cairn::safetensors::read_checksums(text, coverage);
  if (checksums && *checksums && (*checksums)->size() != coverage.blocks) std::abort();
  const auto set = cairn::safetensors::read_file_set(text);
  if (set && cairn::safetensors::render_file_set(*set) != text) std::abort();
  const auto order = cairn::safetensors::read_save_order(text);
  if (order && cairn::safetensors::render_save_order(*order) != text) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  read(cairn::MemorySource(bytes), size);
  read_with_true_length(bytes);
  read_index(bytes);
  read_sharding_info(bytes);
  read_entries_of_cairn(bytes);
  return 0;
}

}  // namespace safetensors_fuzz
