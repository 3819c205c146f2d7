#include "load/read_filter.h"

#include <algorithm>
#include <bit>

#include "core/byte_units.h"
#include "core/little_endian.h"

namespace cairn::checkpointer {
namespace {

constexpr std::size_t kFilterBytesMax = 512;
constexpr std::size_t kFilterBytesMin = 16;
constexpr std::size_t kHostBytes = sizeof(std::uint64_t);

std::size_t filter_bytes(std::size_t rank_count) {
  const std::size_t share = static_cast<std::size_t>(kMiB) / std::max<std::size_t>(rank_count, 1);
  return std::clamp(std::bit_floor(share), kFilterBytesMin, kFilterBytesMax);
}

// Calls `use(byte, mask)` for each of the two bits of a read. The number of a read is a hash.
template <typename Use>
void for_bits(std::uint64_t read, std::size_t bytes, Use&& use) {
  for (const std::uint64_t half : {read & 0xFFFFFFFF, read >> 32}) {
    const std::size_t bit = half % (bytes * 8);
    use(bit / 8, static_cast<unsigned char>(1U << bit % 8));
  }
}

}  // namespace

std::size_t ReadFilter::encoded_bytes(std::size_t rank_count) { return kHostBytes + filter_bytes(rank_count); }

ReadFilter::ReadFilter(std::size_t rank_count, std::uint64_t host)
    : host_(host), bits_(filter_bytes(rank_count), '\0') {}

void ReadFilter::add(std::uint64_t read) {
  for_bits(read, bits_.size(), [this](std::size_t byte, unsigned char mask) {
    bits_[byte] = static_cast<char>(static_cast<unsigned char>(bits_[byte]) | mask);
  });
}

bool ReadFilter::may_hold(std::uint64_t read) const {
  bool holds = true;
  for_bits(read, bits_.size(), [&](std::size_t byte, unsigned char mask) {
    holds = holds && (static_cast<unsigned char>(bits_[byte]) & mask) != 0;
  });
  return holds;
}

std::string ReadFilter::encode() const {
  std::string bytes(kHostBytes, '\0');
  store_little_endian(reinterpret_cast<std::byte*>(bytes.data()), host_);
  return bytes + bits_;
}

ReadFilter ReadFilter::decode(std::string_view bytes, std::size_t rank_count) {
  if (bytes.size() < encoded_bytes(rank_count)) return {rank_count, 0};
  ReadFilter filter(rank_count, load_little_endian<std::uint64_t>(reinterpret_cast<const std::byte*>(bytes.data())));
  filter.bits_ = bytes.substr(kHostBytes, filter.bits_.size());
  return filter;
}

}  // namespace cairn::checkpointer
