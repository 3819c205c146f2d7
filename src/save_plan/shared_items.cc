// A message of a digested plan: file_per_item (a byte), and the digests, as a text; the rest is the local plan. A
// message of indices: their number, and the distance of each to the index before (from -1 for the first). A message of
// a common plan: the bytes and the number of empty items of the own items; the rest is the local plan. Numbers are
// varints.
#include "save_plan/shared_items.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/little_endian.h"
#include "core/sip_hash.h"
#include "format/manifest/varint.h"

namespace cairn::save_plan {
namespace {

using data_file::ItemSource;
using manifest::CodedReader;

// Equal on all ranks. A state with chosen keys can at most make the coordinator plan for all ranks.
constexpr SipKey kDigestKey{0x636169726e2d6974, 0x656d2d6469676573};

// More common items than this share of all items are many.
constexpr std::size_t kManyShare = 8;
// The sample: the digests with this remainder of zero. All ranks choose alike, so common items meet in the sample.
constexpr std::uint64_t kSampleShare = 64;
constexpr std::size_t kSampleMin = 4096;  // of digests; fewer say too little

// Of an item's chunk; empty for a value.
Extents offsets_of(const ItemSource& source) {
  if (source.tensor != nullptr) return source.tensor->box.offsets();
  const auto* const serialized = std::get_if<SerializedTensor>(&source.entry->content);
  if (serialized == nullptr) return {};
  return serialized->chunk ? serialized->chunk->offsets() : Extents(serialized->shape.size(), 0);
}

std::uint64_t digest_of(const ItemSource& source) {
  SipHash hash(kDigestKey);
  hash.add(source.entry->fqn);
  for (const std::int64_t offset : offsets_of(source)) hash.add(static_cast<std::uint64_t>(offset));
  return hash.finish();
}

std::uint64_t read_digest(std::string_view bytes) {
  std::uint64_t digest = 0;
  for (std::size_t i = 0; i < kDigestBytes; ++i) {
    digest |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return digest;
}

template <typename Visit>
void for_digests(std::span<const DigestedPlan> ranks, const Visit& visit) {
  for (const DigestedPlan& rank : ranks) {
    for (std::size_t at = 0; at < rank.digests.size(); at += kDigestBytes) {
      visit(read_digest(rank.digests.substr(at, kDigestBytes)));
    }
  }
}

struct Repeated {
  std::vector<std::uint64_t> digests;  // each once, sorted
  std::size_t item_count = 0;          // with these digests
};

Repeated repeated_in(std::vector<std::uint64_t> digests) {
  Repeated repeated;
  std::ranges::sort(digests);
  for (std::size_t begin = 0, end = 0; begin < digests.size(); begin = end) {
    while (end < digests.size() && digests[end] == digests[begin]) ++end;
    if (end - begin == 1) continue;
    repeated.digests.push_back(digests[begin]);
    repeated.item_count += end - begin;
  }
  return repeated;
}

bool are_many(std::size_t common, std::size_t all) { return common > all / kManyShare; }

// Whether the sample alone shows that the common items are many.
bool has_many_in_sample(std::span<const DigestedPlan> ranks) {
  std::vector<std::uint64_t> sample;
  for_digests(ranks, [&](std::uint64_t digest) {
    if (digest % kSampleShare == 0) sample.push_back(digest);
  });
  const std::size_t count = sample.size();
  return count >= kSampleMin && are_many(repeated_in(std::move(sample)).item_count / 2, count);
}

bool is_above(std::span<const std::uint32_t> indices, std::size_t item_count) {
  return !indices.empty() && indices.back() >= item_count;
}

Result<std::vector<std::uint32_t>> read_indices(CodedReader& reader) {
  CAIRN_TRY_ASSIGN(const std::uint64_t count, reader.count());
  std::vector<std::uint32_t> indices;
  indices.reserve(count);
  std::uint64_t next = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    CAIRN_TRY_ASSIGN(const std::uint64_t distance, reader.varint());
    if (distance == 0 || distance > std::numeric_limits<std::uint32_t>::max() - next) {
      return reader.damaged("indices that do not ascend");
    }
    next += distance;
    indices.push_back(static_cast<std::uint32_t>(next - 1));
  }
  return indices;
}

void append_indices(std::string& message, std::span<const std::uint32_t> indices) {
  manifest::append_varint(message, indices.size());
  std::uint64_t next = 0;
  for (const std::uint32_t index : indices) {
    manifest::append_varint(message, index + 1 - next);
    next = std::uint64_t{index} + 1;
  }
}

// Adds the next rank's plan: the writes of its own items and of its share.
Result<void> add_writes(const plan::LocalPlan& local, const CommonShare& share, plan::GlobalSavePlan& global) {
  CAIRN_TRY_ASSIGN(const std::vector<AssignedItem> items, with_own_items(share, local.size()));
  std::vector<plan::WriteItem>& writes = global.ranks.emplace_back();
  writes.reserve(items.size());
  for (const AssignedItem& item : items) {
    writes.push_back({item.index});
    if (!item.part) continue;
    const auto within = intersection(local[item.index].box, *item.part);
    if (!within || !(*within == *item.part)) {
      return Error(ErrorCode::kCorrupt, "a part outside its item").key(local[item.index].fqn);
    }
    writes.back().cut = static_cast<std::uint32_t>(global.cuts.size());
    global.cuts.push_back(*item.part);
  }
  return {};
}

}  // namespace

std::size_t DigestedPlan::item_count() const { return digests.size() / kDigestBytes; }

std::string encode_digested_plan(std::span<const ItemSource> items, bool file_per_item, std::string_view local_plan) {
  std::string digests;
  digests.reserve(items.size() * kDigestBytes);
  for (const ItemSource& item : items) {
    const std::uint64_t digest = digest_of(item);
    for (std::size_t i = 0; i < kDigestBytes; ++i) digests.push_back(static_cast<char>(digest >> (8 * i)));
  }
  std::string message;
  message.reserve(digests.size() + local_plan.size() + 16);
  message.push_back(file_per_item ? 1 : 0);
  manifest::append_text(message, digests);
  message += local_plan;
  return message;
}

Result<DigestedPlan> read_digested_plan(std::string_view message) {
  CodedReader reader(message);
  DigestedPlan plan;
  CAIRN_TRY_ASSIGN(const std::uint8_t file_per_item, reader.byte());
  if (file_per_item > 1) return reader.damaged("neither one file nor a file for each item");
  plan.file_per_item = file_per_item == 1;
  CAIRN_TRY_ASSIGN(plan.digests, reader.counted_text());
  if (plan.digests.size() % kDigestBytes != 0) return reader.damaged("a part of a digest");
  plan.local_plan = message.substr(message.size() - reader.left());
  return plan;
}

CommonItems find_common_items(std::span<const DigestedPlan> ranks) {
  if (has_many_in_sample(ranks)) return {CommonItems::Count::kMany, {}};
  std::size_t count = 0;
  for (const DigestedPlan& rank : ranks) count += rank.item_count();
  std::vector<std::uint64_t> digests;
  digests.reserve(count);
  for_digests(ranks, [&](std::uint64_t digest) { digests.push_back(digest); });
  const Repeated repeated = repeated_in(std::move(digests));
  if (repeated.item_count == 0) return {};
  if (are_many(repeated.item_count, count)) return {CommonItems::Count::kMany, {}};
  CommonItems common{CommonItems::Count::kFew, {}};
  common.ranks.resize(ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::uint32_t index = 0;
    for_digests(ranks.subspan(rank, 1), [&](std::uint64_t digest) {
      if (std::ranges::binary_search(repeated.digests, digest)) common.ranks[rank].push_back(index);
      ++index;
    });
  }
  return common;
}

std::string encode_indices(std::span<const std::uint32_t> indices) {
  std::string message;
  append_indices(message, indices);
  return message;
}

Result<std::vector<std::uint32_t>> decode_indices(std::string_view message, std::size_t item_count) {
  CodedReader reader(message);
  CAIRN_TRY_ASSIGN(std::vector<std::uint32_t> indices, read_indices(reader));
  if (is_above(indices, item_count)) return reader.damaged("an item that this rank lacks");
  return indices;
}

plan::OwnItems own_items(std::span<const ItemSource> items, std::span<const std::uint32_t> common) {
  plan::OwnItems own;
  std::size_t next = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (next < common.size() && common[next] == i) {
      ++next;
      continue;
    }
    const TensorEntry* const tensor = items[i].tensor;
    const std::uint64_t bytes =
        tensor != nullptr ? static_cast<std::uint64_t>(tensor->box.element_count()) * item_bytes(tensor->local.dtype)
                          : items[i].bytes.size();
    own.bytes += bytes;
    own.empty += bytes == 0 ? 1 : 0;
  }
  return own;
}

std::string encode_common_plan(const plan::OwnItems& own, std::string_view local_plan) {
  std::string message;
  manifest::append_varint(message, own.bytes);
  manifest::append_varint(message, own.empty);
  message += local_plan;
  return message;
}

Result<CommonPlan> decode_common_plan(std::string_view message) {
  CodedReader reader(message);
  CommonPlan plan;
  CAIRN_TRY_ASSIGN(plan.own.bytes, reader.varint());
  CAIRN_TRY_ASSIGN(plan.own.empty, reader.varint());
  plan.local_plan = message.substr(message.size() - reader.left());
  return plan;
}

Result<PlannedSave> plan_common(std::vector<CommonPlan> ranks, bool dedup_to_lowest_rank) {
  PlannedSave planned;
  std::vector<plan::OwnItems> own;
  for (CommonPlan& rank : ranks) {
    CAIRN_TRY(planned.local.add(rank.local_plan));
    own.push_back(rank.own);
    rank = CommonPlan();
  }
  const plan::SavePlanOptions options{dedup_to_lowest_rank, plan::Coverage::kPart, own};
  CAIRN_TRY_ASSIGN(planned.global, plan::plan_save(planned.local.plans(), options));
  return planned;
}

void append_common_share(std::string& message, const CommonShare& share) {
  append_indices(message, share.common);
  append_assigned_items(message, share.written);
}

Result<CommonShare> read_common_share(CodedReader& reader) {
  CommonShare share;
  CAIRN_TRY_ASSIGN(share.common, read_indices(reader));
  CAIRN_TRY_ASSIGN(share.written, read_assigned_items(reader));
  return share;
}

Result<std::vector<AssignedItem>> with_own_items(const CommonShare& share, std::size_t item_count) {
  const auto damaged = [] { return Error(ErrorCode::kCorrupt, "a share of items that are not common items"); };
  if (is_above(share.common, item_count) || share.written.size() > share.common.size()) return damaged();
  std::vector<AssignedItem> items;
  items.reserve(item_count - share.common.size() + share.written.size());
  auto common = share.common.begin();
  auto written = share.written.begin();
  for (std::uint32_t index = 0; index < item_count; ++index) {
    if (common == share.common.end() || *common != index) {
      items.push_back({index, nullptr});
      continue;
    }
    ++common;
    if (written != share.written.end() && written->index == index) items.push_back(*written++);
  }
  if (written != share.written.end()) return damaged();
  return items;
}

Result<JointLayout> lay_out_shared(SharedPlans plans, std::string_view metadata_attributes) {
  PlannedSave planned;
  for (std::size_t rank = 0; rank < plans.local_plans.size(); ++rank) {
    CAIRN_TRY(planned.local.add(plans.local_plans[rank]));
    plans.local_plans[rank] = std::string();
    CommonShare share;
    if (!plans.shares.empty()) share = std::move(plans.shares[rank]);
    auto added = add_writes(planned.local.plans()[rank], share, planned.global);
    if (!added) return std::move(added).error().rank(static_cast<std::int64_t>(rank));
  }
  CAIRN_TRY(plan::check_plan(planned.local.plans(), planned.global, plan::Coverage::kWhole));
  return lay_out_together(std::move(planned), metadata_attributes);
}

}  // namespace cairn::save_plan
