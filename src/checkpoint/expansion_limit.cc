#include "checkpoint/expansion_limit.h"

#include <algorithm>
#include <optional>
#include <string>

#include "checkpoint/checkpoint_impl.h"
#include "core/checked.h"

namespace cairn::checkpointer {
namespace {

// Whether the items of the tensor have at least the bytes of its elements.
Result<void> check_held(const CatalogTensor& tensor) {
  const Result<std::int64_t> elements = element_count(tensor.shape);
  if (!elements) return Error(elements.error()).key(tensor.fqn);
  const auto needed = checked_multiply<std::uint64_t>(static_cast<std::uint64_t>(*elements), item_bytes(tensor.dtype));
  std::uint64_t held = 0;
  for (const ItemLocation& location : tensor.locations) held = checked_add(held, location.length).value_or(UINT64_MAX);
  if (needed && *needed <= held) return {};
  return Error(ErrorCode::kCorrupt, "the chunks of the tensor hold less than its shape")
      .key(tensor.fqn)
      .expected(needed ? std::to_string(*needed) + " bytes" : "a countable size")
      .actual(std::to_string(held) + " bytes");
}

// Whether a file of torch.save has the tensors: a tensor may name an element of its storage many times.
bool repeats_elements(const Catalog& catalog) {
  return catalog.format == CheckpointFormat::kTorchSave || catalog.format == CheckpointFormat::kTorchCheckpointing;
}

}  // namespace

Result<ExpansionLimit> ExpansionLimit::of(const Checkpoint& checkpoint) {
  const Catalog& catalog = checkpoint.impl().catalog;  // has no entries if the entries come from a compact catalog
  ExpansionLimit limit(catalog);
  if (!repeats_elements(catalog)) return limit;
  std::uint64_t file_bytes = 0;
  for (const std::string& file : catalog.files) {
    CAIRN_TRY_ASSIGN(const std::uint64_t bytes, checkpoint.file_bytes(file));
    file_bytes += bytes;
  }
  limit.repeated_max_ = std::max(kBytesFree, checked_multiply(file_bytes, kTimesMax).value_or(UINT64_MAX));
  limit.named_max_ = std::max(kBytesFree, checked_multiply(file_bytes, kNamedTimesMax).value_or(UINT64_MAX));
  return limit;
}

Result<void> ExpansionLimit::add(const CatalogTensor& tensor, std::uint64_t bytes) {
  if (!repeats_elements(*catalog_)) {
    // A stream transform may have compressed the items: their size says nothing.
    return catalog_->transforms.contains(tensor.fqn) ? Result<void>() : check_held(tensor);
  }
  std::uint64_t stored = 0;
  for (const ItemLocation& location : tensor.locations)
    stored = checked_add(stored, location.length).value_or(UINT64_MAX);
  const std::uint64_t held = std::min(bytes, stored);
  repeated_ = checked_add(repeated_, bytes - held).value_or(UINT64_MAX);
  named_ = checked_add(named_, held).value_or(UINT64_MAX);
  const auto refuse = [&](const char* message, std::uint64_t most, std::uint64_t found) {
    return Error(ErrorCode::kUnsafe, message)
        .key(tensor.fqn)
        .file(catalog_->files.front())
        .expected("at most " + std::to_string(most) + " bytes of tensors")
        .actual(std::to_string(found));
  };
  if (repeated_ > repeated_max_) {
    return refuse("the tensors of the file repeat few elements very often: clone such tensors", repeated_max_,
                  repeated_);
  }
  if (named_ > named_max_) {
    return refuse("the file has its tensors under very many names: select some of the keys", named_max_, named_);
  }
  return {};
}

}  // namespace cairn::checkpointer
