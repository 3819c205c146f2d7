// The end of a message: the digests, then their length in bytes (four bytes, little-endian). The digests: for each
// compared item the distance to the compared item before (varint; from -1 for the first), and the digest (four bytes).
#include "save_plan/shared_content.h"

#include <algorithm>
#include <array>
#include <limits>
#include <variant>

#include "core/checksum.h"
#include "core/little_endian.h"
#include "core/region.h"
#include "format/manifest/varint.h"
#include "plan/key_numbers.h"

namespace cairn::save_plan {
namespace {

using data_file::ItemSource;
using manifest::CodedReader;
using plan::LocalItem;

std::uint32_t digest_of_bytes(std::string_view bytes) { return crc32(std::as_bytes(std::span(bytes))); }

bool is_whole(const TensorEntry& tensor) {
  return std::ranges::equal(tensor.box.sizes().span(), tensor.global_shape.span());
}

bool is_contiguous(const TensorView& view) {
  std::int64_t expected = 1;
  for (std::size_t i = view.sizes.size(); i-- > 0;) {
    if (view.sizes[i] != 1 && view.strides[i] != expected) return false;
    expected *= view.sizes[i];
  }
  return true;
}

std::optional<std::uint32_t> digest_of_tensor(const TensorEntry& tensor) {
  const TensorView& view = tensor.local;
  if (!view.device.is_cpu() || !is_whole(tensor)) return std::nullopt;
  const auto elements = static_cast<std::uint64_t>(tensor.box.element_count());
  if (elements == 0 || elements > kComparedTensorBytesMax) return std::nullopt;
  const std::uint64_t bytes = elements * item_bytes(view.dtype);
  if (bytes > kComparedTensorBytesMax) return std::nullopt;
  const auto* data = static_cast<const std::byte*>(view.data);
  if (is_contiguous(view)) return crc32(std::span(data, bytes));
  std::array<std::byte, kComparedTensorBytesMax> gathered;
  const std::span<std::byte> out = std::span(gathered).first(bytes);
  gather(Region(view.sizes, row_major_strides(view.sizes), view.strides), item_bytes(view.dtype), data, 0, out);
  return crc32(out);
}

// A key that ranks have in common.
struct CommonKey {
  std::uint32_t digest = 0;
  std::uint64_t bytes = 0;
  LocalItem::Kind kind = LocalItem::Kind::kTensor;
  KeyHolders holders;
  bool differs = false;
};

struct ComparedItem {
  std::uint32_t index;
  std::uint32_t key;  // its number
};

class Comparison {
 public:
  Result<void> add(const plan::LocalPlan& items, std::string_view contents) {
    numbers_.begin_rank();
    std::vector<ComparedItem>& compared = compared_.emplace_back();
    CodedReader reader(contents);
    std::uint64_t next = 0;
    while (reader.left() > 0) {
      CAIRN_TRY_ASSIGN(const std::uint64_t distance, reader.varint());
      CAIRN_TRY_ASSIGN(const auto digest, reader.fixed<std::uint32_t>());
      if (distance == 0 || distance > items.size() - next) return reader.damaged("a digest of no item");
      next += distance;
      const auto [number, is_new] = numbers_.number_of(items[next - 1].fqn);
      if (is_new) keys_.emplace_back();
      note(items[next - 1], digest, keys_[number]);
      compared.push_back({static_cast<std::uint32_t>(next - 1), number});
    }
    return {};
  }

  SharedContent finish() && {
    SharedContent common;
    for (std::uint32_t number = 0; number < keys_.size(); ++number) {
      if (keys_[number].differs) common.different.add(numbers_.name(number));
    }
    RankSets sets(compared_.size());
    for (const std::vector<ComparedItem>& of_rank : compared_) {
      std::vector<CommonItem>& items = common.common.emplace_back();
      for (const ComparedItem& item : of_rank) {
        const std::optional<std::uint32_t> set = sets.number_of(keys_[item.key].holders);
        if (set) items.push_back({item.index, *set});
      }
    }
    return common;
  }

 private:
  void note(const LocalItem& item, std::uint32_t digest, CommonKey& key) {
    const bool is_first = key.holders.count() == 0;
    if (!key.holders.add(compared_.size())) return;
    if (is_first) {
      key.digest = digest;
      key.bytes = item.bytes;
      key.kind = item.kind;
    } else if (digest != key.digest || item.bytes != key.bytes || item.kind != key.kind) {
      key.differs = true;
    }
  }

  plan::KeyNumbers numbers_;
  std::vector<CommonKey> keys_;                      // by the key's number
  std::vector<std::vector<ComparedItem>> compared_;  // by rank
};

}  // namespace

std::optional<std::uint32_t> content_digest(const ItemSource& item) {
  if (item.tensor != nullptr) return digest_of_tensor(*item.tensor);
  // The archive of a tensor that only torch can read, or of a chunk of such a tensor, which is a rank's own.
  const auto* archive = std::get_if<SerializedTensor>(&item.entry->content);
  if (archive != nullptr && (archive->chunk || item.bytes.size() > kComparedTensorBytesMax)) return std::nullopt;
  return digest_of_bytes(item.bytes);
}

bool is_watched(const ItemSource& item) {
  if (item.tensor == nullptr || !is_floating_point(item.tensor->local.dtype)) return true;
  const auto elements = static_cast<std::uint64_t>(item.tensor->box.element_count());
  return elements <= kWatchedFloatBytesMax / item_bytes(item.tensor->local.dtype);
}

void append_contents(std::span<const ItemSource> items, std::string& message) {
  const std::size_t begin = message.size();
  std::size_t next = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::optional<std::uint32_t> digest = content_digest(items[i]);
    if (!digest) continue;
    manifest::append_varint(message, i + 1 - next);
    manifest::append_fixed(message, *digest);
    next = i + 1;
  }
  manifest::append_fixed(message, static_cast<std::uint32_t>(message.size() - begin));
}

Result<std::string> take_contents(std::string& message) {
  constexpr std::size_t kWordBytes = sizeof(std::uint32_t);
  const auto damaged = [] { return Error(ErrorCode::kCorrupt, "a local plan without the digests of its items"); };
  if (message.size() < kWordBytes) return damaged();
  const std::size_t end = message.size() - kWordBytes;
  const auto length = load_little_endian<std::uint32_t>(reinterpret_cast<const std::byte*>(message.data()) + end);
  if (length > end) return damaged();
  std::string contents = message.substr(end - length, length);
  message.resize(end - length);
  return contents;
}

Result<SharedContent> compare_contents(std::span<const plan::LocalPlan> plans, std::span<const std::string> contents) {
  if (plans.size() != contents.size()) return Error(ErrorCode::kInternal, "digests of another number of ranks");
  Comparison comparison;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    Result<void> added = comparison.add(plans[rank], contents[rank]);
    if (!added) return std::move(added).error().rank(static_cast<std::int64_t>(rank));
  }
  return std::move(comparison).finish();
}

}  // namespace cairn::save_plan
