// Items with few possible writers are placed first:
//
// 1. An item of a single rank adds to the load of its rank, as do the items that are not in the local plans.
// 2. Duplicates that must stay whole are placed by size, largest first, each on its least loaded holder.
// 3. Replicas that may be cut are grouped into families: the replicas with equal sets of holders. Families with few
//    holders come first. The *level* of a family is the load at which all of its ranks would end if the family's bytes
//    filled up the ranks' present loads like water; if the mean load of all ranks is higher, the level is the mean,
//    because ranks outside the family then determine the duration of the save. The replicas are placed largest first. A
//    replica goes whole to the least loaded rank if the load stays near the level. If not, the replica is cut: each
//    rank, least loaded first, takes its missing bytes up to the level. A family of n ranks therefore has at most about
//    n cuts, and no cut if whole replicas come out even.
#include "plan/write_balance.h"

#include <algorithm>
#include <map>

namespace cairn::plan {
namespace {

// The excess over the level that a rank may carry before a replica is cut.
std::uint64_t slack_of(std::uint64_t level) { return std::max(kPartBytesMin, level / 32); }

// The load at which all of `loads` end if `bytes` fill up the lowest loads first.
std::uint64_t water_level(std::vector<std::uint64_t> loads, std::uint64_t bytes) {
  std::sort(loads.begin(), loads.end());
  std::uint64_t under_water = bytes;
  for (std::size_t i = 0;; ++i) {
    under_water += loads[i];
    const std::uint64_t level = under_water / (i + 1);
    if (i + 1 == loads.size() || level <= loads[i + 1]) return level;
  }
}

// The dimension for cutting a box of `bytes` into parts of about `share` bytes: the outermost dimension in which whole
// steps add up to about `share`, because parts of an outer dimension are contiguous in memory. If no dimension
// qualifies, the dimension with the most steps.
std::size_t dimension_to_cut(const Extents& sizes, std::uint64_t bytes, std::uint64_t share) {
  std::size_t finest = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > sizes[finest]) finest = d;
    const std::uint64_t step = std::max<std::uint64_t>(bytes / static_cast<std::uint64_t>(sizes[d]), 1);
    const std::uint64_t rest = share % step;
    if (sizes[d] > 1 && std::min(rest, step - rest) <= share / 16) return d;
  }
  return finest;
}

class Balance {
 public:
  Balance(std::span<const LocalPlan> ranks, const ItemGroups& items, std::span<const OwnItems> own)
      : ranks_(ranks), items_(items), loads_(ranks.size()) {
    plan_.ranks.resize(ranks.size());
    for (std::size_t rank = 0; rank < own.size(); ++rank) {
      loads_[rank] = own[rank].bytes + own[rank].empty;  // as give_whole() would add them
      own_bytes_ += own[rank].bytes;
    }
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) plan_.ranks[rank].reserve(ranks[rank].size());
  }

  GlobalSavePlan run() {
    std::vector<const ItemGroup*> whole;
    std::map<std::vector<std::uint32_t>, std::vector<const ItemGroup*>> families;  // by their ranks
    std::uint64_t bytes = own_bytes_;
    for (const ItemGroup& group : items_.groups) {
      bytes += bytes_of(group);
      if (group.holder_count == 1) {
        give_whole(items_.holders_of(group)[0]);
      } else if (may_be_cut(group)) {
        families[ranks_of(group)].push_back(&group);
      } else {
        whole.push_back(&group);
      }
    }
    mean_ = loads_.empty() ? 0 : bytes / loads_.size();
    sort_by_bytes(whole);
    for (const ItemGroup* group : whole) give_whole(least_loaded(*group));

    std::vector<std::vector<const ItemGroup*>*> order;
    order.reserve(families.size());
    for (auto& [ranks, family] : families) order.push_back(&family);
    std::stable_sort(order.begin(), order.end(),
                     [](auto* a, auto* b) { return a->front()->holder_count < b->front()->holder_count; });
    for (auto* family : order) spread(*family);
    return std::move(plan_);
  }

 private:
  std::uint64_t bytes_of(const ItemGroup& group) const { return items_.holders[group.first_holder].bytes; }
  std::uint64_t load_of(const Holder& holder) const { return loads_[holder.rank]; }

  std::vector<std::uint32_t> ranks_of(const ItemGroup& group) const {
    std::vector<std::uint32_t> ranks;
    for (const Holder& holder : items_.holders_of(group)) ranks.push_back(holder.rank);
    return ranks;
  }

  bool may_be_cut(const ItemGroup& group) const {
    const Holder& holder = items_.holders[group.first_holder];
    return group.replicated && holder.bytes >= 2 * kPartBytesMin &&
           ranks_[holder.rank][holder.item].box.element_count() > 1;
  }

  void sort_by_bytes(std::vector<const ItemGroup*>& groups) const {
    std::stable_sort(groups.begin(), groups.end(), [&](auto* a, auto* b) { return bytes_of(*a) > bytes_of(*b); });
  }

  const Holder& least_loaded(const ItemGroup& group) const {
    const auto holders = items_.holders_of(group);
    return *std::ranges::min_element(holders, {}, [&](const Holder& holder) { return load_of(holder); });
  }

  void give_whole(const Holder& holder) {
    plan_.ranks[holder.rank].push_back({holder.item});
    loads_[holder.rank] += std::max<std::uint64_t>(holder.bytes, 1);  // an item without bytes has a cost too
  }

  // Step 3, for the replicas of one family.
  void spread(std::vector<const ItemGroup*>& family) {
    std::vector<std::uint64_t> loads;
    for (const Holder& holder : items_.holders_of(*family.front())) loads.push_back(load_of(holder));
    std::uint64_t bytes = 0;
    for (const ItemGroup* group : family) bytes += bytes_of(*group);
    const std::uint64_t level = std::max(water_level(std::move(loads), bytes), mean_);
    sort_by_bytes(family);
    for (const ItemGroup* group : family) {
      const Holder& holder = least_loaded(*group);
      if (load_of(holder) + bytes_of(*group) <= level + slack_of(level)) {
        give_whole(holder);
      } else {
        cut(*group, level);
      }
    }
  }

  void cut(const ItemGroup& group, std::uint64_t level) {
    const auto all = items_.holders_of(group);
    std::vector<Holder> takers(all.begin(), all.end());
    std::stable_sort(takers.begin(), takers.end(), [&](auto& a, auto& b) { return load_of(a) < load_of(b); });
    const std::uint64_t bytes = bytes_of(group);
    const Box& box = ranks_[takers[0].rank][takers[0].item].box;
    // The bytes that a rank lacks to the level, and at least the smallest size of a part.
    const auto share_of = [&](const Holder& holder) {
      return std::max(level - std::min(level, load_of(holder)), kPartBytesMin);
    };
    const std::size_t dimension = dimension_to_cut(box.sizes(), bytes, std::min(share_of(takers[0]), bytes));
    const auto step_count = static_cast<std::uint64_t>(box.sizes()[dimension]);
    const std::uint64_t step = std::max<std::uint64_t>(bytes / step_count, 1);

    std::uint64_t wanted = 0;  // bytes up to the end of this taker's part, before rounding to steps
    std::uint64_t begin = 0;   // in steps, as `end`
    for (std::size_t i = 0; i < takers.size() && begin < step_count; ++i) {
      wanted += std::min(share_of(takers[i]), bytes - wanted);
      const bool last = i + 1 == takers.size() || bytes - wanted < kPartBytesMin;
      const std::uint64_t end = last ? step_count : std::min((wanted + step / 2) / step, step_count);
      if (end == begin) continue;
      if (end - begin == step_count) return give_whole(takers[i]);
      give_part(takers[i], box, {dimension, begin, end});
      loads_[takers[i].rank] += (end - begin) * step;
      begin = end;
    }
  }

  // The elements of a box from step `begin` to step `end` along one dimension.
  struct Slab {
    std::size_t dimension;
    std::uint64_t begin;
    std::uint64_t end;
  };
  void give_part(const Holder& holder, const Box& box, const Slab& slab) {
    Extents offsets = box.offsets();
    Extents sizes = box.sizes();
    offsets[slab.dimension] += static_cast<std::int64_t>(slab.begin);
    sizes[slab.dimension] = static_cast<std::int64_t>(slab.end - slab.begin);
    plan_.ranks[holder.rank].push_back({holder.item, static_cast<std::uint32_t>(plan_.cuts.size())});
    plan_.cuts.push_back(Box::make(std::move(offsets), std::move(sizes)).value());  // a part of a valid box is valid
  }

  std::span<const LocalPlan> ranks_;
  const ItemGroups& items_;
  std::vector<std::uint64_t> loads_;  // bytes, by rank
  std::uint64_t own_bytes_ = 0;
  std::uint64_t mean_ = 0;  // of the final loads
  GlobalSavePlan plan_;
};

}  // namespace

GlobalSavePlan balance_writes(std::span<const LocalPlan> ranks, const ItemGroups& items,
                              std::span<const OwnItems> own) {
  return Balance(ranks, items, own).run();
}

GlobalSavePlan write_at_lowest_rank(std::size_t rank_count, const ItemGroups& items) {
  GlobalSavePlan plan;
  plan.ranks.resize(rank_count);
  for (const ItemGroup& group : items.groups) {
    const Holder& lowest = items.holders_of(group)[0];
    plan.ranks[lowest.rank].push_back({lowest.item});
  }
  return plan;
}

}  // namespace cairn::plan
