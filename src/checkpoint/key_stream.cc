#include <cairn/checkpoint.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "checkpoint/checkpoint_impl.h"
#include "checkpoint/recorded_dtypes.h"
#include "checkpoint/wanted_entries.h"

namespace cairn {
namespace {

constexpr std::size_t kKeysAtATime = 1024;

KeySummary summary_of_key(const Catalog& catalog, const Catalog::KeyRef& key) {
  if (!key.is_tensor) return {.fqn = catalog.values[key.index].fqn};
  const CatalogTensor& tensor = catalog.tensors[key.index];
  return {tensor.fqn, true, tensor.dtype, tensor.shape, tensor.requires_grad};
}

}  // namespace

Result<std::span<const KeySummary>> KeyStream::next() {
  Checkpoint::Impl& impl = checkpoint_->impl();
  batch_.clear();
  if (impl.metadata && !reads_whole_) {
    Result<void> read = read_block();
    const bool is_damaged =
        !read && (read.error().code() == ErrorCode::kCorrupt || read.error().code() == ErrorCode::kUnsafe);
    if (!read && !is_damaged) return impl.replaced_while_read(std::move(read).error());
    if (is_damaged) {
      impl.note_damage(read.error());
      reads_whole_ = true;
      batch_.clear();
    }
  }
  if (!impl.metadata || reads_whole_) {
    const Catalog* whole = nullptr;
    CAIRN_TRY_ASSIGN(whole, impl.whole_catalog());
    CAIRN_TRY(take_from(*whole));
  }
  given_ += batch_.size();
  return std::span<const KeySummary>(batch_);
}

// A block without keys cannot be: the writer ends a block when the block has bytes.
Result<void> KeyStream::read_block() {
  const compact_catalog::CompactCatalog& compact = checkpoint_->impl().metadata->compact();
  while (batch_.empty() && block_ < compact.block_count()) {
    CAIRN_TRY(compact.for_each_in_block(block_++, [this](const compact_catalog::CatalogEntry& entry) -> Result<void> {
      batch_.push_back({std::string(entry.fqn), entry.is_tensor, entry.dtype, entry.shape, entry.requires_grad});
      return {};
    }));
  }
  if (given_ + batch_.size() > compact.key_count() || (batch_.empty() && given_ != compact.key_count())) {
    return Error(ErrorCode::kCorrupt, "a compact catalog with another number of keys")
        .expected(std::to_string(compact.key_count()))
        .actual(std::to_string(given_ + batch_.size()));
  }
  return {};
}

Result<void> KeyStream::take_from(const Catalog& catalog) {
  const std::uint64_t end = std::min<std::uint64_t>(catalog.keys.size(), given_ + kKeysAtATime);
  for (std::uint64_t i = given_; i < end; ++i) batch_.push_back(summary_of_key(catalog, catalog.keys[i]));
  return {};
}

std::uint64_t Checkpoint::key_count() const noexcept {
  return impl_->metadata ? impl_->metadata->compact().key_count() : impl_->catalog.keys.size();
}

const std::vector<std::string>& Checkpoint::files() const noexcept { return impl_->catalog.files; }

Result<std::optional<KeyEntry>> Checkpoint::entry(std::string_view fqn) const {
  CAIRN_TRY_ASSIGN(const checkpointer::WantedEntries entries, checkpointer::WantedEntries::of_key(*impl_, fqn));
  if (const CatalogTensor* tensor = entries.tensor(fqn)) {
    CatalogTensor found = *tensor;
    CAIRN_TRY_ASSIGN(const std::optional<DType> recorded, checkpointer::recorded_dtype(*impl_, found, false));
    found.dtype = recorded.value_or(found.dtype);
    return std::optional<KeyEntry>(std::move(found));
  }
  if (const CatalogValue* value = entries.value(fqn)) return std::optional<KeyEntry>(*value);
  return std::optional<KeyEntry>();
}

Result<Catalog> Checkpoint::outline(std::uint64_t keys_max) const {
  Catalog outline;
  outline.format = impl_->catalog.format;
  outline.files = impl_->catalog.files;
  outline.version = impl_->catalog.version;
  outline.checkpoint_id = impl_->catalog.checkpoint_id;
  outline.save_id = impl_->catalog.save_id;
  KeyStream keys(*this);
  while (outline.keys.size() < keys_max) {
    CAIRN_TRY_ASSIGN(const std::span<const KeySummary> batch, keys.next());
    if (batch.empty()) break;
    for (const KeySummary& key : batch.first(std::min<std::uint64_t>(batch.size(), keys_max - outline.keys.size()))) {
      const std::size_t index = key.is_tensor ? outline.tensors.size() : outline.values.size();
      outline.keys.push_back({key.is_tensor, static_cast<std::uint32_t>(index)});
      if (key.is_tensor) {
        outline.tensors.push_back({key.fqn, key.dtype, key.shape, key.requires_grad, {}, {}});
      } else {
        outline.values.push_back({key.fqn, {}});
      }
    }
  }
  CAIRN_TRY(outline.index());
  return outline;
}

}  // namespace cairn
