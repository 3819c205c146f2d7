#include "checkpointer/shared_reads.h"

#include <algorithm>

#include "core/byte_units.h"
#include "core/little_endian.h"
#include "core/sip_hash.h"

namespace cairn::checkpointer {
namespace {

// Reads of fewer bytes count as small.
constexpr std::uint64_t kLargeReadBytes = 64 * kKiB;

std::uint64_t number_of(const data_file::TensorRead& read, std::string_view host) {
  SipHash hash({0x636169726e2d7368, 0x617265642d726473});
  hash.add(host);
  hash.add(read.file().name());
  hash.add(read.stored().record_offset);
  hash.add(read.span_begin());
  hash.add(read.span_end());
  return hash.finish();
}

}  // namespace

ReadGroup group_of(const data_file::TensorRead& read, bool covers_tensor) {
  if (!covers_tensor) return ReadGroup::kShards;
  return read.bytes_needed() < kLargeReadBytes ? ReadGroup::kSmallTensors : ReadGroup::kLargeTensors;
}

SharedReads::Numbers SharedReads::numbers_of(const std::vector<data_file::TensorRead>& reads,
                                             const std::vector<ReadGroup>& groups, std::string_view host) {
  Numbers numbers{};
  if (host.empty()) return numbers;
  // The order of the state dict's keys does not change the sum.
  for (std::size_t i = 0; i < reads.size(); ++i) {
    numbers[static_cast<std::size_t>(groups[i])] += number_of(reads[i], host);
  }
  return numbers;
}

void SharedReads::mark(std::vector<data_file::TensorRead>& reads, const std::vector<ReadGroup>& groups,
                       const std::vector<Numbers>& by_rank, std::size_t rank) {
  std::array<data_file::Sharers, kReadGroupCount> sharers;
  for (std::size_t group = 0; group < kReadGroupCount; ++group) {
    const std::uint64_t mine = by_rank[rank][group];
    if (mine == 0) continue;
    const auto is_same = [&](const Numbers& it) { return it[group] == mine; };
    const auto own = by_rank.begin() + static_cast<std::ptrdiff_t>(rank);
    sharers[group].count = static_cast<std::uint32_t>(std::count_if(by_rank.begin(), by_rank.end(), is_same));
    sharers[group].place = static_cast<std::uint32_t>(std::count_if(by_rank.begin(), own, is_same));
  }
  for (std::size_t i = 0; i < reads.size(); ++i) reads[i].set_sharers(sharers[static_cast<std::size_t>(groups[i])]);
}

std::string SharedReads::encode(const Numbers& numbers) {
  std::string bytes(kEncodedBytes, '\0');
  auto* to = reinterpret_cast<std::byte*>(bytes.data());
  for (const std::uint64_t number : numbers) to = store_little_endian(to, number);
  return bytes;
}

SharedReads::Numbers SharedReads::decode(std::string_view bytes) {
  Numbers numbers{};
  if (bytes.size() < kEncodedBytes) return numbers;
  const auto* from = reinterpret_cast<const std::byte*>(bytes.data());
  for (std::size_t i = 0; i < kReadGroupCount; ++i) {
    numbers[i] = load_little_endian<std::uint64_t>(from + i * sizeof(std::uint64_t));
  }
  return numbers;
}

}  // namespace cairn::checkpointer
