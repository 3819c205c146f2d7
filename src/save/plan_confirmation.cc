// Steps:
//
// 1. Every rank adds up the hashes of the items that it will write, each with its place: from its own state and its own
//    layout. The coordinator does the same for every rank, from the catalog of the metadata. The key of the hash is the
//    save id, which the coordinator has drawn after the checkpoint was read: nobody can have made other items of an
//    equal sum.
// 2. One reduction brings the two sums of each rank together: the smallest number and the smallest complement are
//    complements of each other only if all numbers are equal. The reduction also compares the values that the ranks
//    have in common (rank_differences.h, step 3).                                                      [reduction]
//
// The sums do not tell whether an item is missing in the metadata and in the files alike. Before the ranks vote for the
// plan, the coordinator has checked that the chunks of each tensor cover the tensor, and every rank that the metadata
// has all keys of its state (resumed_plan.cc, step 4).
#include "save/plan_confirmation.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/attempt.h"
#include "core/sip_hash.h"
#include "format/manifest/index_coding.h"

namespace cairn::checkpointer {
namespace {

using manifest::TrailerItem;

constexpr std::int64_t kNoSum = std::numeric_limits<std::int64_t>::max();
// In both places of a rank that cannot compute its sum: these two are not complements.
constexpr std::int64_t kSumFailed = std::numeric_limits<std::int64_t>::min();

struct ItemPlace {
  std::uint64_t file = 0;  // among the rank's files
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

class ItemHash {
 public:
  ItemHash(const SipKey& key, std::string_view fqn, const Path& path) : hash_(key) {
    hash_.add(fqn);
    std::string coded;
    if (!path.empty()) manifest::append_path_of(coded, path, fqn);
    hash_.add(coded);
  }

  // `box`: offsets, then sizes.
  void add_chunk(DType dtype, bool requires_grad, const Extents& shape, std::span<const std::int64_t> box) {
    hash_.add(std::uint64_t{1} + shape.size());
    hash_.add(static_cast<std::uint64_t>(dtype) << 1 | (requires_grad ? 1 : 0));
    add_numbers(shape.span());
    add_numbers(box);
  }
  void add_value() { hash_.add(std::uint64_t{0}); }

  std::uint64_t finish(const ItemPlace& place) {
    hash_.add(place.file);
    hash_.add(place.offset);
    hash_.add(place.length);
    return hash_.finish();
  }

 private:
  void add_numbers(std::span<const std::int64_t> numbers) {
    for (const std::int64_t number : numbers) hash_.add(static_cast<std::uint64_t>(number));
  }
  SipHash hash_;
};

// Of the items that this rank will write.
std::uint64_t sum_of_own(const writer::StagedLayout& layout, const SipKey& key, bool has_paths) {
  std::uint64_t sum = 0;
  std::vector<std::int64_t> box;
  for (std::size_t file = 0; file < layout.files.size(); ++file) {
    for (const TrailerItem& item : layout.files[file].index.items) {
      ItemHash hash(key, item.fqn, has_paths ? item.path : Path());
      if (item.kind == TrailerItem::Kind::kValue) {
        hash.add_value();
      } else {
        box.assign(item.box.offsets().begin(), item.box.offsets().end());
        box.insert(box.end(), item.box.sizes().begin(), item.box.sizes().end());
        hash.add_chunk(item.dtype, item.requires_grad, item.global_shape, box);
      }
      sum += hash.finish({file, item.range.item_offset, item.range.item_length});
    }
  }
  return sum;
}

// The sums of all ranks, from the catalog. The catalog's files are those of rank 0, then those of rank 1, ...
class CatalogSums {
 public:
  CatalogSums(const ResumedMetadata& metadata, const SipKey& key) : metadata_(metadata), key_(key) {
    sums_.resize(metadata.file_counts.size());
    for (std::size_t rank = 0; rank < metadata.file_counts.size(); ++rank) {
      for (std::uint32_t number = 0; number < metadata.file_counts[rank]; ++number) files_.push_back({rank, number});
    }
  }

  std::vector<std::uint64_t> run() && {
    const Catalog& catalog = metadata_.catalog;
    auto path = catalog.paths.begin();  // in the order of the keys
    for (const Catalog::KeyRef& ref : catalog.keys) {
      const std::string& fqn = ref.is_tensor ? catalog.tensors[ref.index].fqn : catalog.values[ref.index].fqn;
      const bool has_path = path != catalog.paths.end() && path->first == fqn;
      const ItemHash key(key_, fqn, has_path ? path->second : Path());
      if (has_path) ++path;
      if (ref.is_tensor) {
        add_tensor(catalog.tensors[ref.index], key);
      } else {
        ItemHash hash = key;
        hash.add_value();
        add(hash, catalog.values[ref.index].location);
      }
    }
    return std::move(sums_);
  }

 private:
  struct File {
    std::size_t rank;
    std::uint32_t number;
  };

  void add_tensor(const CatalogTensor& tensor, const ItemHash& key) {
    const std::size_t width = 2 * tensor.shape.size();
    for (std::size_t chunk = 0; chunk < tensor.chunk_count(); ++chunk) {
      ItemHash hash = key;
      hash.add_chunk(tensor.dtype, tensor.requires_grad, tensor.shape,
                     std::span(tensor.boxes).subspan(chunk * width, width));
      add(hash, tensor.locations[chunk]);
    }
  }

  void add(ItemHash hash, const ItemLocation& location) {
    if (location.file >= files_.size()) return;  // an item without bytes, which no rank writes
    const File& file = files_[location.file];
    sums_[file.rank] += hash.finish({file.number, location.offset, location.length});
  }

  const ResumedMetadata& metadata_;
  const SipKey& key_;
  std::vector<File> files_;
  std::vector<std::uint64_t> sums_;  // by rank
};

// Enters the sums that this rank knows: for each rank a number, then for each rank its complement.
Result<void> enter_sums(const coordination::Ranks& ranks, const StagedPlan& plan, const SipKey& key, bool has_paths,
                        std::vector<std::int64_t>& numbers) {
  const auto enter = [&](std::size_t rank, std::uint64_t sum) {
    numbers[rank] = std::bit_cast<std::int64_t>(sum);
    numbers[ranks.size() + rank] = ~numbers[rank];
  };
  const std::uint64_t own = sum_of_own(*plan.layout, key, has_paths);
  enter(ranks.rank(), own);
  if (!ranks.is_coordinator()) return {};
  if (!plan.resumed) return Error(ErrorCode::kInternal, "a plan that is not confirmed has no metadata");
  const std::vector<std::uint64_t> sums = sums_by_rank(*plan.resumed, key);
  if (sums.size() != ranks.size() || sums[ranks.rank()] != own) {
    return Error(ErrorCode::kCorrupt, "the metadata of the plan does not describe this rank's files");
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) enter(rank, sums[rank]);
  return {};
}

}  // namespace

std::vector<std::uint64_t> sums_by_rank(const ResumedMetadata& metadata, const SipKey& key) {
  return CatalogSums(metadata, key).run();
}

Result<Confirmation> confirm_plan(coordination::Ranks& ranks, const commit::SaveTicket& ticket,
                                  const std::shared_ptr<const StagedPlan>& plan,
                                  std::span<const data_file::ItemSource> items, bool has_paths) {
  const SaveId& id = ticket.identity.save_id;
  const std::size_t sums = 2 * ranks.size();
  std::vector<std::int64_t> numbers(sums, kNoSum);
  std::optional<ContentParts> parts;
  auto confirmed = attempt([&]() -> Result<std::shared_ptr<StagedPlan>> {
    CAIRN_TRY(enter_sums(ranks, *plan, SipKey{id.low, id.high}, has_paths, numbers));  // (1)
    parts.emplace(items);
    parts->append_to(numbers);
    auto copy = std::make_shared<StagedPlan>(*plan);
    copy->id = confirmed_plan_id(id.low);
    copy->is_confirmed = true;
    copy->resumed.reset();
    return copy;
  });
  if (!confirmed) numbers[ranks.rank()] = numbers[ranks.size() + ranks.rank()] = kSumFailed;
  numbers.resize(sums + ContentParts::kNumbers, kNoSum);
  CAIRN_TRY_ASSIGN(const std::vector<std::int64_t> smallest, ranks.smallest(std::move(numbers)));  // (2)
  if (smallest.size() != sums + ContentParts::kNumbers) {
    return Error(ErrorCode::kCorrupt, "the reduction has returned a wrong number of numbers");
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (smallest[rank] != ~smallest[ranks.size() + rank]) return Confirmation();
  }
  if (!confirmed) return std::move(confirmed).error();
  ContentParts::Common common = parts->common_of(std::span(smallest).subspan(sums));
  (*confirmed)->watched = std::move(common.watched);
  return Confirmation{*std::move(confirmed), common.different};
}

}  // namespace cairn::checkpointer
