// Replicas are read once for each host.
//
// 1. In the first exchange of a load each rank also sends three numbers: hashes of its host (the kernel's boot id) and
//    of the ranges that the rank reads of large whole tensors, of small whole tensors, and of shards. Ranks with equal
//    numbers share the reads of the group.
// 2. A Bloom filter of the rank's reads of 64 KiB and more (read_filter.h; 512 bytes, and less beyond 2048 ranks) finds
//    the common reads of ranks that also have reads of their own, as experts or pipeline stages have.
// 3. The sharers go through the batches in windows, in the order of file names and offsets. Each sharer begins a window
//    at its own place (data_file/read_pieces.h). A sharer prefetches a batch that the page cache lacks; the remaining
//    sharers find the batch in the page cache. Reads into overlapping memory keep the order of file names and offsets,
//    which is the same on every rank.
// 4. Every rank reads and checks all bytes of its targets, and waits for no sharer: a wrong match, or a rank that dies,
//    costs only speed.
// 5. A rank drops the batches that the rank has brought (data_file/brought_ranges.h) after the load, and earlier beyond
//    2 GiB, or a quarter of the free memory, for all sharers together. Without direct I/O the batches stay.
//
// A rank with less than 512 MiB of free memory, by the machine and by its memory cgroups, shares nothing. A load by
// torch's own driver with cairn.FileSystemReader has no exchange, and each rank reads alone.
#include "load/shared_reads.h"

#include <algorithm>

#include "core/byte_units.h"
#include "core/little_endian.h"
#include "core/sip_hash.h"

namespace cairn::checkpointer {
namespace {

// Reads of fewer bytes count as small.
constexpr std::uint64_t kLargeReadBytes = 64 * kKiB;

constexpr SipKey kReadKey{0x636169726e2d7368, 0x617265642d726473};

std::uint64_t number_of(const data_file::TensorRead& read, std::string_view host) {
  SipHash hash(kReadKey);
  hash.add(host);
  hash.add(read.file().name());
  hash.add(read.stored().record_offset);
  hash.add(read.span_begin());
  hash.add(read.span_end());
  return hash.finish();
}

// Never 0.
std::uint64_t number_of_host(std::string_view host) {
  SipHash hash(kReadKey);
  hash.add(host);
  return hash.finish() | 1;
}

bool is_large(const data_file::TensorRead& read) { return read.bytes_needed() >= kLargeReadBytes; }

// The sharers of a read among the ranks of the host.
data_file::Sharers sharers_by_filters(std::uint64_t read, const std::vector<ReadFilter>& filters,
                                      const std::vector<std::size_t>& neighbours, std::size_t rank) {
  data_file::Sharers sharers{0, 0};
  for (const std::size_t other : neighbours) {
    if (other != rank && !filters[other].may_hold(read)) continue;
    sharers.place += other < rank ? 1 : 0;
    ++sharers.count;
  }
  return sharers;
}

}  // namespace

ReadGroup group_of(const data_file::TensorRead& read, bool covers_tensor) {
  if (!covers_tensor) return ReadGroup::kShards;
  return is_large(read) ? ReadGroup::kLargeTensors : ReadGroup::kSmallTensors;
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

ReadFilter SharedReads::filter_of(const std::vector<data_file::TensorRead>& reads, std::string_view host,
                                  std::size_t rank_count) {
  ReadFilter filter(rank_count, host.empty() ? 0 : number_of_host(host));
  if (host.empty()) return filter;
  for (const data_file::TensorRead& read : reads) {
    if (is_large(read)) filter.add(number_of(read, {}));
  }
  return filter;
}

void SharedReads::mark(std::vector<data_file::TensorRead>& reads, const std::vector<ReadGroup>& groups,
                       const std::vector<Numbers>& by_rank, const std::vector<ReadFilter>& filters, std::size_t rank) {
  std::array<data_file::Sharers, kReadGroupCount> sharers;
  for (std::size_t group = 0; group < kReadGroupCount; ++group) {
    const std::uint64_t mine = by_rank[rank][group];
    if (mine == 0) continue;
    const auto is_same = [&](const Numbers& it) { return it[group] == mine; };
    const auto own = by_rank.begin() + static_cast<std::ptrdiff_t>(rank);
    sharers[group].count = static_cast<std::uint32_t>(std::count_if(by_rank.begin(), by_rank.end(), is_same));
    sharers[group].place = static_cast<std::uint32_t>(std::count_if(by_rank.begin(), own, is_same));
  }
  std::vector<std::size_t> neighbours;  // and the rank itself
  for (std::size_t other = 0; other < filters.size(); ++other) {
    if (filters[rank].host() != 0 && filters[other].host() == filters[rank].host()) neighbours.push_back(other);
  }
  for (std::size_t i = 0; i < reads.size(); ++i) {
    data_file::Sharers found = sharers[static_cast<std::size_t>(groups[i])];
    if (found.count == neighbours.size() || !is_large(reads[i]) || neighbours.empty()) {
      reads[i].set_sharers(found);
      continue;
    }
    reads[i].set_sharers(sharers_by_filters(number_of(reads[i], {}), filters, neighbours, rank));
  }
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
