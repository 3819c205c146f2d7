#include "data_file/image.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "core/checked.h"

namespace cairn::data_file {

Result<std::uint64_t> Image::bytes_of(const TensorView& tensor) {
  CAIRN_TRY_ASSIGN(const std::int64_t count, element_count(tensor.sizes));
  const auto bytes = checked_multiply(static_cast<std::uint64_t>(count), std::uint64_t{item_bytes(tensor.dtype)});
  if (!bytes) return Error(ErrorCode::kInvalidArgument, "a tensor of more than 2^64 bytes");
  return *bytes;
}

void Image::reserve(std::size_t payload_count) { payloads_.reserve(payload_count); }

void Image::add(Payload payload) {
  assert(payloads_.empty() || payload.offset >= payloads_.back().end());
  slots_.append(payload.length);
  payloads_.push_back(std::move(payload));
}

void Image::add_tensor(std::uint64_t offset, std::uint64_t length, const TensorView& tensor) {
  Payload payload{offset, length};
  const auto* const data = tensor.device.is_cpu() ? static_cast<const std::byte*>(tensor.data) : nullptr;
  Region region(tensor.sizes, row_major_strides(tensor.sizes), tensor.strides);
  if (data == nullptr || region.is_linear() || length == 0) {
    payload.contiguous = data;
  } else {
    payload.strided = &tensor;
    payload.region = std::move(region);
  }
  add(std::move(payload));
}

void Image::add_bytes(std::uint64_t offset, std::string_view bytes) {
  add({offset, bytes.size(), reinterpret_cast<const std::byte*>(bytes.data())});
}

std::size_t Image::first_payload_beyond(std::uint64_t offset) const {
  const auto found = std::partition_point(payloads_.begin(), payloads_.end(),
                                          [offset](const Payload& payload) { return payload.end() <= offset; });
  return static_cast<std::size_t>(found - payloads_.begin());
}

std::optional<std::span<const std::byte>> Image::view_payload(std::size_t index, std::uint64_t begin,
                                                              std::uint64_t length) const {
  const Payload& payload = payloads_[index];
  if (payload.region) return std::nullopt;
  return std::span(payload.contiguous + begin, length);
}

void Image::read_payload(std::size_t index, std::uint64_t begin, std::span<std::byte> out) const {
  const Payload& payload = payloads_[index];
  if (out.empty()) return;  // a payload without elements may have no memory
  if (!payload.region) {
    std::memcpy(out.data(), payload.contiguous + begin, out.size());
    return;
  }
  const std::size_t item_size = item_bytes(payload.strided->dtype);
  gather(*payload.region, item_size, static_cast<const std::byte*>(payload.strided->data),
         static_cast<std::int64_t>(begin / item_size), out);
}

void Image::revise(std::span<const std::uint32_t> /*checksums*/, std::span<std::byte> out) const {
  assert(out.empty());
  (void)out;
}

}  // namespace cairn::data_file
