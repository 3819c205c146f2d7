// Replicas are read once for each job, for storage that is slower than the network. The steps of broadcast_reads.h in
// detail:
//
// 1. Each rank cuts its ranges into windows of at most 4 MiB. Equal ranges give equal windows.
// 2. In the first exchange of a load each rank also sends three hashes of its ranges, without the host. Ranks with
//    equal hashes are the members of a group. A tensor of a rank's own among the tensors of its kind keeps the rank
//    from the group.
// 3. A group whose members are all on one host reads by the page cache instead. All ranks together use the caller's
//    process group. Replicas of shards (HSDP) use a group of their members, made for the load, from 16 MiB on; in the
//    Python package a gloo group.
// 4. Window w belongs to member w mod n. A thread of each member reads the member's windows ahead, the calling thread
//    broadcasts the windows in order, and a second thread checks every byte and places the elements. Each rank has four
//    buffers. A byte behind each window says whether the window's member is well: after a window of a member that has
//    failed all members stop, and the second exchange of the load has the reason.
#include "load/broadcast_reads.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/byte_units.h"

namespace cairn::checkpointer {
namespace {

// With fewer bytes, the members of a part of the ranks read on their own: the group of the transport would take longer.
constexpr std::uint64_t kSubgroupBytesMin = 16 * kMiB;

using Numbers = SharedReads::Numbers;

// The ranks with the number of `rank`, ascending.
std::vector<std::size_t> members_of(const std::vector<Numbers>& by_rank, std::size_t group, std::size_t rank) {
  std::vector<std::size_t> members;
  for (std::size_t other = 0; other < by_rank.size(); ++other) {
    if (by_rank[other][group] == by_rank[rank][group]) members.push_back(other);
  }
  return members;
}

// Whether the members share the page cache of one host.
bool share_host(const std::vector<Numbers>& host_numbers, std::size_t group, const std::vector<std::size_t>& members) {
  const std::uint64_t first = host_numbers[members.front()][group];
  return first != 0 && std::all_of(members.begin(), members.end(),
                                   [&](std::size_t member) { return host_numbers[member][group] == first; });
}

}  // namespace

void BroadcastReads::take(std::vector<data_file::TensorRead>& reads, std::vector<ReadGroup>& groups,
                          const BroadcastOptions& options) {
  buffers_ = std::make_unique<WindowBuffers>();
  std::array<std::vector<data_file::TensorRead>, kReadGroupCount> taken;
  std::vector<data_file::TensorRead> left;
  std::vector<ReadGroup> groups_left;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (!reads[i].keeps_order()) {
      taken[static_cast<std::size_t>(groups[i])].push_back(std::move(reads[i]));
      continue;
    }
    left.push_back(std::move(reads[i]));
    groups_left.push_back(groups[i]);
  }
  reads = std::move(left);
  groups = std::move(groups_left);
  for (std::size_t group = 0; group < kReadGroupCount; ++group) {
    groups_[group].windows = std::make_unique<WindowBroadcast>(std::move(taken[group]), options);
  }
}

BroadcastReads::Numbers BroadcastReads::numbers() const {
  Numbers numbers{};
  for (std::size_t group = 0; group < kReadGroupCount; ++group) numbers[group] = groups_[group].windows->number();
  return numbers;
}

Result<void> BroadcastReads::choose(const std::vector<Numbers>& broadcast_numbers,
                                    const std::vector<SharedReads::Numbers>& host_numbers, Collectives& all,
                                    std::vector<data_file::TensorRead>& reads, std::vector<ReadGroup>& groups) {
  for (std::size_t group = 0; group < kReadGroupCount; ++group) {
    auto& [windows, collectives] = groups_[group];
    const std::vector<std::size_t> members = members_of(broadcast_numbers, group, all.rank());
    const bool is_common = broadcast_numbers[all.rank()][group] != 0 && members.size() > 1;
    if (is_common && !share_host(host_numbers, group, members)) {
      const bool are_all = members.size() == all.size();
      if (are_all) collectives = &all;
      if (!are_all && windows->bytes() >= kSubgroupBytesMin) {
        CAIRN_TRY_ASSIGN(collectives, all.subgroup(members));
      }
    }
    if (collectives != nullptr) continue;
    std::vector<data_file::TensorRead> back = std::move(*windows).give_back();
    windows.reset();
    groups.insert(groups.end(), back.size(), static_cast<ReadGroup>(group));
    std::move(back.begin(), back.end(), std::back_inserter(reads));
  }
  return {};
}

BroadcastOutcome BroadcastReads::run() {
  BroadcastOutcome outcome;
  std::vector<const Collectives*> lost;
  for (Group& group : groups_) {
    if (group.windows == nullptr || std::find(lost.begin(), lost.end(), group.members) != lost.end()) continue;
    outcome.lost_transport = false;
    // After a failure too: the members of another group, perhaps other ranks, wait for this rank.
    group.windows->run(*group.members, *buffers_, outcome);
    if (!outcome.lost_transport) continue;
    if (outcome.has_left()) return outcome;
    lost.push_back(group.members);
  }
  outcome.lost_transport = !lost.empty();
  return outcome;
}

std::uint64_t BroadcastReads::bytes_needed() const {
  std::uint64_t bytes = 0;
  for (const Group& group : groups_) {
    if (group.windows == nullptr) continue;
    for (const data_file::TensorRead& read : group.windows->reads()) bytes += read.bytes_needed();
  }
  return bytes;
}

}  // namespace cairn::checkpointer
