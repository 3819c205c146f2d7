// Steps:
//
//  1. Rank by rank, every item gets the number of its key, and is held against the first item of that key.
//  2. Key by key, places are set aside; the ranks' items are copied there, with their boxes as plain numbers. From here
//     on everything is read in order, and the ranks' plans are left alone.
//  3. Each key's items are sorted by box, unless they are already. Equal ones are neighbours now: a group.
//  4. One box per group remains: these chunks are validated.
#include "plan/item_groups.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <unordered_map>

#include "core/checked.h"

namespace cairn::plan {
namespace {

using Kind = LocalItem::Kind;

constexpr std::uint64_t kBytesMax = std::numeric_limits<std::int64_t>::max();

// What the first rank that has a key says about it.
struct Key {
  const LocalItem* first;
  std::uint32_t rank;
  std::uint32_t item_count = 0;
  bool replicated = true;

  // Numbers that tell its chunks apart, per chunk. Items that are written whole or not at all have none.
  std::size_t box_numbers() const { return first->kind == Kind::kTensor ? 2 * first->shape.size() : 0; }
};

std::string description_of(const LocalItem& item) {
  if (item.kind == Kind::kValue) return "a value";
  const std::string tensor = std::string(name_of(item.dtype)) + " " + to_string(item.shape);
  return (item.kind == Kind::kTensor ? "a tensor, " : "a serialized tensor, ") + tensor;
}

Result<void> check_agreement(const Key& key, const LocalItem& item, std::uint32_t rank) {
  const LocalItem& first = *key.first;
  const bool agree = item.kind == first.kind &&
                     (item.kind == Kind::kValue || (item.dtype == first.dtype && item.shape == first.shape));
  if (agree) return {};
  return Error(ErrorCode::kInvalidArgument, "ranks disagree about a key")
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
  if (item.kind != Kind::kTensor || item.box.dimensions() == item.shape.size()) return {};
  return Error(ErrorCode::kInvalidArgument, "a chunk and its tensor differ in dimensions")
      .expected(to_string(item.shape))
      .actual(to_string(item.box));
}

// Numbers for names. Ranks list mostly the same keys in the same order, so the name that followed last time is looked
// at before the table is asked.
class KeyTable {
 public:
  // A new rank begins.
  void rewind() { previous_ = kNone; }

  std::uint32_t number_of(const LocalItem& item, std::uint32_t rank) {
    std::uint32_t& next = previous_ == kNone ? head_ : followers_[previous_];
    if (next == kNone || keys_[next].first->fqn != item.fqn) {
      const auto [found, fresh] = numbers_.try_emplace(item.fqn, static_cast<std::uint32_t>(keys_.size()));
      next = found->second;
      if (fresh) keys_.push_back({&item, rank});
    }
    previous_ = next;
    followers_.resize(keys_.size(), kNone);  // the last use of `next`: it may look into what moves here
    return previous_;
  }

  std::vector<Key>& keys() { return keys_; }

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  std::vector<Key> keys_;
  std::vector<std::uint32_t> followers_;  // of each key
  std::unordered_map<std::string_view, std::uint32_t> numbers_;
  std::uint32_t head_ = kNone;
  std::uint32_t previous_ = kNone;
};

class Grouping {
 public:
  explicit Grouping(std::span<const LocalPlan> ranks) : ranks_(ranks) {}

  Result<ItemGroups> run(Coverage coverage) {
    CAIRN_TRY(number_keys());
    gather();
    result_.groups.reserve(result_.holders.size() / ranks_.size());
    std::size_t first_holder = 0;
    std::size_t first_number = 0;
    for (const Key& key : table_.keys()) {
      const std::span<std::int64_t> boxes(numbers_.data() + first_number, key.item_count * key.box_numbers());
      sort(key, first_holder, boxes);
      CAIRN_TRY(group(key, first_holder, boxes));
      if (key.box_numbers() != 0) {
        const auto chunks = boxes.first(chunk_ranks_.size() * key.box_numbers());
        CAIRN_TRY(validate_chunks({key.first->fqn, key.first->shape, chunks, chunk_ranks_}, coverage));
      }
      first_holder += key.item_count;
      first_number += boxes.size();
    }
    return std::move(result_);
  }

 private:
  // Step 1.
  Result<void> number_keys() {
    std::size_t count = 0;
    for (const LocalPlan& plan : ranks_) count += plan.size();
    if (count >= std::numeric_limits<std::uint32_t>::max()) {
      return Error(ErrorCode::kInvalidArgument, "more than 2^32 - 2 items in one save").actual(std::to_string(count));
    }
    key_of_.reserve(count);
    std::uint64_t bytes = 0;
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      table_.rewind();
      for (const LocalItem& item : ranks_[rank]) {
        if (auto added = add(item, rank, bytes); !added) return std::move(added).error().key(item.fqn).rank(rank);
      }
    }
    return {};
  }

  Result<void> add(const LocalItem& item, std::uint32_t rank, std::uint64_t& bytes) {
    key_of_.push_back(table_.number_of(item, rank));
    Key& key = table_.keys()[key_of_.back()];
    CAIRN_TRY(key.item_count == 0 ? check_first(item) : check_agreement(key, item, rank));
    CAIRN_TRY(check_dimensions(item));
    const auto sum = checked_add(bytes, item.bytes);
    if (!sum || *sum > kBytesMax) return Error(ErrorCode::kInvalidArgument, "a save of more than 2^63 - 1 bytes");
    bytes = *sum;
    ++key.item_count;
    key.replicated = key.replicated && item.replicated;
    return {};
  }

  // Step 2.
  void gather() {
    struct Place {
      Holder* holder;
      std::int64_t* numbers;
    };
    std::size_t number_count = 0;
    for (const Key& key : table_.keys()) number_count += key.item_count * key.box_numbers();
    result_.holders.resize(key_of_.size());
    numbers_.resize(number_count);
    std::vector<Place> places;
    Place next{result_.holders.data(), numbers_.data()};
    for (const Key& key : table_.keys()) {
      places.push_back(next);
      next.holder += key.item_count;
      next.numbers += key.item_count * key.box_numbers();
    }
    auto key = key_of_.begin();
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      for (std::uint32_t i = 0; i < ranks_[rank].size(); ++i) {
        const LocalItem& item = ranks_[rank][i];
        Place& place = places[*key++];
        *place.holder++ = {rank, i, item.bytes};
        if (item.kind != Kind::kTensor) continue;
        place.numbers = std::copy(item.box.offsets().begin(), item.box.offsets().end(), place.numbers);
        place.numbers = std::copy(item.box.sizes().begin(), item.box.sizes().end(), place.numbers);
      }
    }
  }

  // Step 3. Boxes by offsets, those without elements last: so they follow one with elements that begins alike.
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

  void sort(const Key& key, std::size_t first_holder, std::span<std::int64_t> boxes) {
    const std::size_t width = key.box_numbers();
    const auto box = [&](std::size_t i) { return std::span<const std::int64_t>(boxes).subspan(i * width, width); };
    bool sorted = true;
    for (std::size_t i = 1; width != 0 && sorted && i < key.item_count; ++i) sorted = !before(box(i), box(i - 1));
    if (sorted) return;
    order_.resize(key.item_count);
    std::iota(order_.begin(), order_.end(), 0U);
    std::stable_sort(order_.begin(), order_.end(), [&](auto a, auto b) { return before(box(a), box(b)); });
    const std::span<Holder> holders = std::span<Holder>(result_.holders).subspan(first_holder, key.item_count);
    const std::vector<std::int64_t> unsorted_boxes(boxes.begin(), boxes.end());
    const std::vector<Holder> unsorted_holders(holders.begin(), holders.end());
    for (std::size_t i = 0; i < order_.size(); ++i) {
      holders[i] = unsorted_holders[order_[i]];
      std::copy_n(unsorted_boxes.begin() + static_cast<std::ptrdiff_t>(order_[i] * width), width, &boxes[i * width]);
    }
  }

  // Moves one box per group to the front of `boxes`, and its lowest rank to `chunk_ranks_`.
  Result<void> group(const Key& key, std::size_t first_holder, std::span<std::int64_t> boxes) {
    const std::size_t width = key.box_numbers();
    const bool replicated = key.replicated && key.first->kind == Kind::kTensor;
    const std::size_t first_group = result_.groups.size();
    bool all_have_elements = true;
    chunk_ranks_.clear();
    for (std::size_t begin = 0, end = 0; begin < key.item_count; begin = end) {
      const auto box = boxes.subspan(begin * width, width);
      end = begin + 1;
      while (end < key.item_count && std::equal(box.begin(), box.end(), &boxes[end * width])) ++end;
      const ItemGroup group{static_cast<std::uint32_t>(first_holder + begin), static_cast<std::uint32_t>(end - begin),
                            replicated};
      CAIRN_TRY(check_listed_once(key, group));
      all_have_elements = all_have_elements && has_elements(box);
      if (!chunk_ranks_.empty() && !has_elements(box)) {
        const auto last = boxes.subspan((chunk_ranks_.size() - 1) * width, width / 2);
        if (std::ranges::equal(last, box.first(width / 2))) continue;  // its name is taken, and it holds nothing
      }
      std::copy(box.begin(), box.end(), boxes.begin() + static_cast<std::ptrdiff_t>(chunk_ranks_.size() * width));
      chunk_ranks_.push_back(result_.holders[group.first_holder].rank);
      result_.groups.push_back(group);
    }
    // A cut must not begin where a chunk without elements does, either. Rare: no cuts, then.
    for (std::size_t i = first_group; !all_have_elements && i < result_.groups.size(); ++i) {
      result_.groups[i].replicated = false;
    }
    return {};
  }

  Result<void> check_listed_once(const Key& key, const ItemGroup& group) const {
    const auto holders = result_.holders_of(group);
    const auto twice = std::ranges::adjacent_find(holders, {}, &Holder::rank);
    if (twice == holders.end()) return {};
    const LocalItem& item = ranks_[twice->rank][twice->item];
    return Error(ErrorCode::kInvalidArgument, "a rank lists an item twice")
        .key(key.first->fqn)
        .rank(twice->rank)
        .actual(item.kind == Kind::kTensor ? to_string(item.box) : description_of(item));
  }

  std::span<const LocalPlan> ranks_;
  KeyTable table_;
  std::vector<std::uint32_t> key_of_;       // of each item, rank by rank
  std::vector<std::int64_t> numbers_;       // the items' boxes, key by key
  std::vector<std::uint32_t> order_;        // of one key's items
  std::vector<std::uint32_t> chunk_ranks_;  // of one key's groups
  ItemGroups result_;
};

}  // namespace

Result<ItemGroups> group_items(std::span<const LocalPlan> ranks, Coverage coverage) {
  if (ranks.empty()) return ItemGroups();
  return Grouping(ranks).run(coverage);
}

}  // namespace cairn::plan
