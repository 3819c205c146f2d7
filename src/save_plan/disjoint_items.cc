// A message: the number of files, and the digests, as a text (varints); the rest is the local plan.
#include "save_plan/disjoint_items.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/little_endian.h"
#include "core/sip_hash.h"
#include "format/manifest/varint.h"

namespace cairn::save_plan {
namespace {

using data_file::ItemSource;
using manifest::TrailerItem;

// Equal on all ranks. A state with chosen keys can at most make the coordinator plan for all ranks.
constexpr SipKey kDigestKey{0x636169726e2d6974, 0x656d2d6469676573};

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

}  // namespace

std::string encode_digested_plan(std::span<const ItemSource> items, std::uint32_t file_count,
                                 std::string_view local_plan) {
  std::string digests;
  digests.reserve(items.size() * kDigestBytes);
  for (const ItemSource& item : items) {
    const std::uint64_t digest = digest_of(item);
    for (std::size_t i = 0; i < kDigestBytes; ++i) digests.push_back(static_cast<char>(digest >> (8 * i)));
  }
  std::string message;
  message.reserve(digests.size() + local_plan.size() + 16);
  manifest::append_varint(message, file_count);
  manifest::append_text(message, digests);
  message += local_plan;
  return message;
}

Result<DigestedPlan> read_digested_plan(std::string_view message) {
  manifest::CodedReader reader(message);
  DigestedPlan plan;
  CAIRN_TRY_ASSIGN(const std::uint64_t file_count, reader.varint());
  if (file_count > std::numeric_limits<std::uint32_t>::max()) return reader.damaged("more files than 2^32");
  plan.file_count = static_cast<std::uint32_t>(file_count);
  CAIRN_TRY_ASSIGN(plan.digests, reader.counted_text());
  if (plan.digests.size() % kDigestBytes != 0) return reader.damaged("a part of a digest");
  plan.local_plan = message.substr(message.size() - reader.left());
  return plan;
}

bool are_disjoint(std::span<const DigestedPlan> ranks) {
  std::size_t count = 0;
  for (const DigestedPlan& rank : ranks) count += rank.digests.size() / kDigestBytes;
  std::vector<std::uint64_t> digests;
  digests.reserve(count);
  for (const DigestedPlan& rank : ranks) {
    for (std::size_t at = 0; at < rank.digests.size(); at += kDigestBytes) {
      digests.push_back(read_digest(rank.digests.substr(at, kDigestBytes)));
    }
  }
  std::ranges::sort(digests);
  return std::ranges::adjacent_find(digests) == digests.end();
}

Result<JointLayout> lay_out_disjoint(std::vector<std::string> local_plans, std::string_view metadata_attributes) {
  CAIRN_TRY_ASSIGN(PlannedSave planned, plan_together(std::move(local_plans), false));
  std::vector<std::size_t> counts;
  for (const plan::LocalPlan& items : planned.local.plans()) counts.push_back(items.size());
  CAIRN_TRY_ASSIGN(JointLayout layout, lay_out_together(std::move(planned), metadata_attributes));
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    const std::vector<AssignedItem>& items = layout.ranks[rank].items;
    bool is_own = items.size() == counts[rank];
    for (std::size_t i = 0; is_own && i < items.size(); ++i) is_own = items[i].index == i && items[i].part == nullptr;
    if (!is_own) {
      return Error(ErrorCode::kInternal, "the joint plan differs from the rank's own layout")
          .rank(static_cast<std::int64_t>(rank));
    }
  }
  return layout;
}

}  // namespace cairn::save_plan
