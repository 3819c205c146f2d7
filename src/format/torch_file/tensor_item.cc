#include "format/torch_file/tensor_item.h"

#include "core/checked.h"
#include "core/checksum.h"
#include "core/little_endian.h"
#include "format/torch_file/storage_class.h"
#include "format/zip/record_writer.h"

#include <array>
#include <cassert>
#include <cstring>
#include <limits>
#include <string_view>

namespace cairn::torch_file {
namespace {

constexpr std::string_view kPickleName = "archive/data.pkl";
constexpr std::string_view kVersionName = "archive/version";
constexpr std::string_view kPayloadName = "archive/data/0";
constexpr std::string_view kVersionText = "3\n";

// More than the pickle of a tensor with the most dimensions and the widest numbers.
constexpr std::size_t kPickleBytesMax = 2048;

// A pickle in a fixed buffer: protocol 2, no memo, each integer in its shortest opcode.
class FixedPickle {
 public:
  explicit FixedPickle(const TensorItem& item) {
    const StorageClass storage = storage_class_of(item.dtype);
    op("\x80\x02");
    global("torch._utils", storage.untyped ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
    op("((");
    text("storage");
    global(storage.module, storage.name);
    text("0");
    text("cpu");
    std::int64_t elements = 1;
    for (const std::int64_t size : item.sizes) elements *= size;  // layout_tensor_item() has checked the product
    integer(storage.untyped ? elements * static_cast<std::int64_t>(item_bytes(item.dtype)) : elements);
    op("tQ");
    integer(0);
    tuple(item.sizes);
    tuple(row_major_strides(item.sizes));
    op("\x89");
    global("collections", "OrderedDict");
    op(")R");
    if (storage.untyped) global("torch", name_of(item.dtype));
    op("tR.");
  }

  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(buffer_).first(size_)); }

 private:
  void op(std::string_view codes) {
    assert(size_ + codes.size() <= buffer_.size());
    std::memcpy(buffer_.data() + size_, codes.data(), codes.size());
    size_ += codes.size();
  }
  void little_endian(std::uint64_t value, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) buffer_[size_ + i] = static_cast<char>(value >> (8 * i));
    size_ += count;
  }
  void global(std::string_view module, std::string_view name) {
    op("c");
    op(module);
    op("\n");
    op(name);
    op("\n");
  }
  void text(std::string_view text) {
    op("X");
    little_endian(text.size(), 4);
    op(text);
  }
  // `value` is not negative.
  void integer(std::int64_t value) {
    const auto number = static_cast<std::uint64_t>(value);
    if (number < 0x100) {
      op("K");
      little_endian(number, 1);
    } else if (number < 0x10000) {
      op("M");
      little_endian(number, 2);
    } else if (number < 0x80000000) {
      op("J");
      little_endian(number, 4);
    } else {
      op("\x8a\x08");
      little_endian(number, 8);
    }
  }
  void tuple(const Extents& extents) {
    const std::size_t count = extents.size();
    if (count > 3) op("(");
    for (const std::int64_t value : extents) integer(value);
    if (count == 0) op(")");
    if (count == 1) op("\x85");
    if (count == 2) op("\x86");
    if (count == 3) op("\x87");
    if (count > 3) op("t");
  }

  std::size_t size_ = 0;
  std::array<char, kPickleBytesMax> buffer_;
};

// The records of an item, in the item's order.
struct Records {
  zip::Record pickle;
  zip::Record version;
  zip::Record payload;

  Records(std::uint32_t pickle_bytes, std::uint64_t payload_bytes)
      : pickle{kPickleName, pickle_bytes},
        version{kVersionName, kVersionText.size()},
        payload{kPayloadName, payload_bytes, 0, 0, true} {
    version.header_offset = zip::local_header_bytes(pickle) + pickle_bytes;
    payload.header_offset = version.header_offset + zip::local_header_bytes(version) + version.size;
    version.crc = crc32(std::as_bytes(std::span(kVersionText)));
  }

  std::uint32_t head_bytes() const {
    return static_cast<std::uint32_t>(payload.header_offset) + zip::local_header_bytes(payload);
  }
  zip::End end() const {
    const std::uint64_t offset = head_bytes() + payload.size + zip::descriptor_bytes(payload);
    const std::uint32_t bytes =
        zip::directory_entry_bytes(pickle) + zip::directory_entry_bytes(version) + zip::directory_entry_bytes(payload);
    return {3, offset, bytes};
  }
};

std::byte* copy(std::span<const std::byte> from, std::byte* to) {
  std::memcpy(to, from.data(), from.size());
  return to + from.size();
}

}  // namespace

Result<TensorItemLayout> layout_tensor_item(const TensorItem& item) {
  if (is_quantized(item.dtype)) {
    return Error(ErrorCode::kUnsupported, "a quantised tensor has no native form").actual(name_of(item.dtype));
  }
  CAIRN_TRY_ASSIGN(const std::int64_t elements, element_count(item.sizes));
  const auto bytes = checked_multiply(static_cast<std::uint64_t>(elements), std::uint64_t{item_bytes(item.dtype)});
  constexpr std::uint64_t kBytesMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) - (1 << 20);
  if (!bytes || *bytes > kBytesMax) {
    return Error(ErrorCode::kInvalidArgument, "a tensor of more than 2^63 bytes").actual(to_string(item.sizes));
  }
  const FixedPickle pickle(item);
  const Records records(static_cast<std::uint32_t>(pickle.bytes().size()), *bytes);
  const zip::End end = records.end();
  TensorItemLayout layout;
  layout.head_bytes = records.head_bytes();
  layout.payload_bytes = *bytes;
  layout.tail_bytes =
      static_cast<std::uint32_t>(zip::descriptor_bytes(records.payload) + end.directory_bytes) + zip::end_bytes(end);
  return layout;
}

void render_head(const TensorItem& item, const TensorItemLayout& layout, std::span<std::byte> out) {
  assert(out.size() == layout.head_bytes);
  const FixedPickle pickle(item);
  Records records(static_cast<std::uint32_t>(pickle.bytes().size()), layout.payload_bytes);
  records.pickle.crc = crc32(pickle.bytes());
  std::byte* to = zip::render_local_header(records.pickle, out.data());
  to = copy(pickle.bytes(), to);
  to = zip::render_local_header(records.version, to);
  to = copy(std::as_bytes(std::span(kVersionText)), to);
  to = zip::render_local_header(records.payload, to);
  assert(to == out.data() + out.size());
}

void render_tail(const TensorItem& item, const TensorItemLayout& layout, std::uint32_t payload_crc,
                 std::span<std::byte> out) {
  assert(out.size() == layout.tail_bytes);
  const FixedPickle pickle(item);
  Records records(static_cast<std::uint32_t>(pickle.bytes().size()), layout.payload_bytes);
  records.pickle.crc = crc32(pickle.bytes());
  records.payload.crc = payload_crc;
  std::byte* to = zip::render_descriptor(records.payload, out.data());
  to = zip::render_directory_entry(records.pickle, to);
  to = zip::render_directory_entry(records.version, to);
  to = zip::render_directory_entry(records.payload, to);
  to = zip::render_end(records.end(), to);
  assert(to == out.data() + out.size());
}

}  // namespace cairn::torch_file
