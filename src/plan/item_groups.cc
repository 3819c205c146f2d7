// Steps:
//
// 1. Rank by rank, number the keys and count their items. Then compare each item with the first item of its key, and
//    add to the key: the holder, and the box as plain numbers. The later steps read only the first item of each key,
//    except for error texts.
// 2. Sort each key's items by box, unless they are sorted. Equal boxes are then neighbours and form a group.
// 3. Keep one box per group. Validate these chunks.
#include "plan/item_groups.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "core/checked.h"
#include "plan/key_numbers.h"

namespace cairn::plan {
namespace {

using Kind = LocalItem::Kind;

// The items of all ranks with one name.
struct Key {
  const LocalItem* first;
  std::uint32_t rank;       // of `first`
  std::uint32_t count = 0;  // of the items
  bool replicated = true;
  std::vector<Holder> holders = {};
  std::vector<std::int64_t> boxes = {};  // per holder, as in CatalogTensor

  // The count of numbers per chunk that distinguish the key's chunks. Zero for a key that is written whole.
  std::size_t box_numbers() const { return first->kind == Kind::kValue ? 0 : 2 * first->shape.size(); }
};

std::string description_of(const LocalItem& item) {
  if (item.kind == Kind::kValue) return "a value";
  const std::string tensor = std::string(name_of(item.dtype)) + " " + to_string(item.shape);
  return (item.kind == Kind::kTensor ? "a tensor, " : "a serialized tensor, ") + tensor;
}

Result<void> check_agreement(const Key& key, const LocalItem& item, std::uint32_t rank) {
  const LocalItem& first = *key.first;
  // A tensor may have chunks of both kinds: torchao's optimizers quantise the larger shards only.
  const bool agree = (item.kind == Kind::kValue) == (first.kind == Kind::kValue) &&
                     (item.kind == Kind::kValue || (item.dtype == first.dtype && item.shape == first.shape));
  if (agree) return {};
  return Error(ErrorCode::kInvalidArgument, "the ranks disagree about the kind, dtype or shape of the key")
      .key(item.fqn)
      .rank(rank)
      .expected(description_of(first) + ", as on rank " + std::to_string(key.rank))
      .actual(description_of(item));
}

Result<void> check_first(const LocalItem& item) {
  if (item.kind != Kind::kValue) CAIRN_TRY(element_count(item.shape));
  return {};
}

Result<void> check_dimensions(const LocalItem& item) {
  if (item.kind == Kind::kValue || item.box.dimensions() == item.shape.size()) return {};
  return Error(ErrorCode::kInvalidArgument, "a chunk and its tensor differ in dimensions")
      .expected(to_string(item.shape))
      .actual(to_string(item.box));
}

class Grouping {
 public:
  explicit Grouping(std::span<const LocalPlan> ranks) : ranks_(ranks) {}

  Result<ItemGroups> run(Coverage coverage) {
    CAIRN_TRY(gather());
    for (Key& key : keys_) {
      sort(key);
      CAIRN_TRY(group(key));
      if (key.box_numbers() != 0) {
        CAIRN_TRY(validate_chunks({key.first->fqn, key.first->shape, key.boxes, chunk_ranks_}, coverage));
      }
      result_.holders.insert(result_.holders.end(), key.holders.begin(), key.holders.end());
      key.holders = std::vector<Holder>();  // freed now: two copies at a time are never in memory
      key.boxes = std::vector<std::int64_t>();
    }
    return std::move(result_);
  }

 private:
  // Step 1.
  Result<void> gather() {
    std::size_t count = 0;
    for (const LocalPlan& plan : ranks_) count += plan.size();
    if (count >= std::numeric_limits<std::uint32_t>::max()) {
      return Error(ErrorCode::kInvalidArgument, "more than 2^32 - 2 items in one save").actual(std::to_string(count));
    }
    result_.holders.reserve(count);
    result_.groups.reserve(count);
    const std::vector<std::uint32_t> numbers = number_keys(count);
    std::size_t next = 0;
    std::uint64_t bytes = 0;
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      for (std::uint32_t i = 0; i < ranks_[rank].size(); ++i) {
        const LocalItem& item = ranks_[rank][i];
        auto added = add(keys_[numbers[next++]], {rank, i, item.bytes}, item, bytes);
        if (!added) return std::move(added).error().key(item.fqn).rank(rank);
      }
    }
    return {};
  }

  // The key of each of `count` items, rank by rank.
  std::vector<std::uint32_t> number_keys(std::size_t count) {
    std::vector<std::uint32_t> numbers;
    numbers.reserve(count);
    KeyNumbers names;
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      names.begin_rank();
      for (const LocalItem& item : ranks_[rank]) {
        const auto [number, is_new] = names.number_of(item.fqn);
        if (is_new) keys_.push_back({&item, rank});
        ++keys_[number].count;
        numbers.push_back(number);
      }
    }
    return numbers;
  }

  Result<void> add(Key& key, const Holder& holder, const LocalItem& item, std::uint64_t& bytes) {
    CAIRN_TRY(key.holders.empty() ? check_first(item) : check_agreement(key, item, holder.rank));
    const auto sum = checked_add(bytes, item.bytes);
    if (!sum || *sum > kSaveBytesMax) return Error(ErrorCode::kInvalidArgument, "a save of more than 2^63 - 1 bytes");
    bytes = *sum;
    key.replicated = key.replicated && item.replicated && item.kind == Kind::kTensor;
    if (key.holders.empty()) {
      key.holders.reserve(key.count);
      key.boxes.reserve(key.count * key.box_numbers());
    }
    key.holders.push_back(holder);
    if (item.kind == Kind::kValue) return {};
    CAIRN_TRY(check_dimensions(item));
    key.boxes.insert(key.boxes.end(), item.box.offsets().begin(), item.box.offsets().end());
    key.boxes.insert(key.boxes.end(), item.box.sizes().begin(), item.box.sizes().end());
    return {};
  }

  // Step 2. The order is by offsets. At equal offsets, a box with elements comes before a box without elements.
  static bool before(std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
    const std::size_t dimensions = a.size() / 2;
    for (std::size_t d = 0; d < dimensions; ++d) {
      if (a[d] != b[d]) return a[d] < b[d];
    }
    if (std::ranges::equal(a, b)) return false;
    if (has_elements(a) != has_elements(b)) return has_elements(a);
    return std::ranges::lexicographical_compare(a, b);
  }
  static bool has_elements(std::span<const std::int64_t> box) {
    return std::ranges::find(box.last(box.size() / 2), 0) == box.last(box.size() / 2).end();
  }

  void sort(Key& key) {
    const std::size_t width = key.box_numbers();
    const auto box = [&](std::size_t i) { return std::span<const std::int64_t>(key.boxes).subspan(i * width, width); };
    bool sorted = true;
    for (std::size_t i = 1; width != 0 && sorted && i < key.holders.size(); ++i) sorted = !before(box(i), box(i - 1));
    if (sorted) return;
    order_.resize(key.holders.size());
    std::iota(order_.begin(), order_.end(), 0U);
    std::stable_sort(order_.begin(), order_.end(), [&](auto a, auto b) { return before(box(a), box(b)); });
    std::vector<Holder> holders;
    std::vector<std::int64_t> boxes;
    holders.reserve(key.holders.size());
    boxes.reserve(key.boxes.size());
    for (const std::uint32_t i : order_) {
      holders.push_back(key.holders[i]);
      boxes.insert(boxes.end(), box(i).begin(), box(i).end());
    }
    key.holders = std::move(holders);
    key.boxes = std::move(boxes);
  }

  // Step 3. Leaves one box per group in key.boxes, and the lowest rank of each group in `chunk_ranks_`.
  Result<void> group(Key& key) {
    const std::size_t width = key.box_numbers();
    const bool replicated = key.replicated;
    const std::size_t first_group = result_.groups.size();
    bool all_have_elements = true;
    chunk_ranks_.clear();
    for (std::size_t begin = 0, end = 0; begin < key.holders.size(); begin = end) {
      const auto box = std::span<const std::int64_t>(key.boxes).subspan(begin * width, width);
      end = begin + 1;
      while (end < key.holders.size() && std::equal(box.begin(), box.end(), key.boxes.data() + end * width)) ++end;
      CAIRN_TRY(check_listed_once(key, std::span(key.holders).subspan(begin, end - begin)));
      std::int64_t* const place = key.boxes.data() + chunk_ranks_.size() * width;
      if (!has_elements(box)) {
        all_have_elements = false;
        const auto offsets = box.first(width / 2);
        const bool name_is_taken = !chunk_ranks_.empty() && std::equal(offsets.begin(), offsets.end(), place - width);
        if (name_is_taken) continue;
      }
      std::copy(box.begin(), box.end(), place);
      chunk_ranks_.push_back(key.holders[begin].rank);
      result_.groups.push_back({static_cast<std::uint32_t>(result_.holders.size() + begin),
                                static_cast<std::uint32_t>(end - begin), replicated});
    }
    key.boxes.resize(chunk_ranks_.size() * width);
    // A cut must not begin where a chunk without elements begins. Such chunks are rare: the whole key is not cut then.
    for (std::size_t i = first_group; !all_have_elements && i < result_.groups.size(); ++i) {
      result_.groups[i].replicated = false;
    }
    return {};
  }

  // Checks the holders of one group, in the order of ranks.
  Result<void> check_listed_once(const Key& key, std::span<const Holder> holders) const {
    const auto twice = std::ranges::adjacent_find(holders, {}, &Holder::rank);
    if (twice == holders.end()) return {};
    const LocalItem& item = ranks_[twice->rank][twice->item];
    return Error(ErrorCode::kInvalidArgument, "a rank lists an item twice")
        .key(key.first->fqn)
        .rank(twice->rank)
        .actual(item.kind == Kind::kValue ? description_of(item) : to_string(item.box));
  }

  std::span<const LocalPlan> ranks_;
  std::vector<Key> keys_;                   // in the order of their first occurrence
  std::vector<std::uint32_t> order_;        // of one key's items
  std::vector<std::uint32_t> chunk_ranks_;  // of one key's groups
  ItemGroups result_;
};

}  // namespace

Result<ItemGroups> group_items(std::span<const LocalPlan> ranks, Coverage coverage) {
  return Grouping(ranks).run(coverage);
}

}  // namespace cairn::plan
