#include <cairn/catalog.h>

#include <array>

#include "core/nearest_names.h"
#include "core/seeded_hash.h"

namespace cairn {
namespace {
__extension__ using UInt128 = unsigned __int128;
}  // namespace

std::string to_hex(const SaveId& id) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint64_t half : {id.high, id.low}) {
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(half >> shift) & 0xF];
  }
  return text;
}

std::string uuid_text(const SaveId& id) {
  std::string text = to_hex(id);
  for (const std::size_t place : {20u, 16u, 12u, 8u}) text.insert(place, 1, '-');
  return text;
}

std::string to_decimal(const SaveId& id) {
  constexpr std::size_t kDigitCount = 39;  // of 2^128 - 1
  UInt128 number = (static_cast<UInt128>(id.high) << 64) | id.low;
  std::string text(kDigitCount, '0');
  for (std::size_t i = kDigitCount; i-- > 0; number /= 10)
    text[i] = static_cast<char>('0' + static_cast<int>(number % 10));
  return text;
}

std::string_view name_of(CheckpointFormat format) {
  switch (format) {
    case CheckpointFormat::kDcp: return "dcp";
    case CheckpointFormat::kSafetensors: return "safetensors";
    case CheckpointFormat::kTorchSave: return "torch";
    case CheckpointFormat::kTorchCheckpointing: return "torch_checkpointing";
  }
  return "dcp";
}

Box CatalogTensor::chunk(std::size_t index) const {
  const std::size_t dimensions = shape.size();
  const std::span<const std::int64_t> numbers = std::span(boxes).subspan(index * 2 * dimensions, 2 * dimensions);
  return Box::make(Extents(numbers.first(dimensions)), Extents(numbers.last(dimensions))).value();
}

std::size_t KeyHash::operator()(std::string_view key) const noexcept { return SeededHash()(key); }

const CatalogTensor* Catalog::find_tensor(std::string_view fqn) const {
  const auto found = by_fqn_.find(fqn);
  return found != by_fqn_.end() && found->second.is_tensor ? &tensors[found->second.index] : nullptr;
}

const CatalogValue* Catalog::find_value(std::string_view fqn) const {
  const auto found = by_fqn_.find(fqn);
  return found != by_fqn_.end() && !found->second.is_tensor ? &values[found->second.index] : nullptr;
}

std::vector<std::string> Catalog::nearest_keys(std::string_view fqn, std::size_t count_max) const {
  NearestNames nearest(fqn, count_max);
  for (const KeyRef& key : keys) nearest.consider(key.is_tensor ? tensors[key.index].fqn : values[key.index].fqn);
  return std::move(nearest).take();
}

Result<void> Catalog::index() {
  by_fqn_.clear();
  by_fqn_.reserve(tensors.size() + values.size());
  const auto add = [&](std::string_view fqn, KeyRef ref) -> Result<void> {
    if (!by_fqn_.emplace(fqn, ref).second) return Error(ErrorCode::kCorrupt, "the key occurs twice").key(fqn);
    return {};
  };
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    CAIRN_TRY(add(tensors[i].fqn, {true, static_cast<std::uint32_t>(i)}));
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    CAIRN_TRY(add(values[i].fqn, {false, static_cast<std::uint32_t>(i)}));
  }
  return {};
}

}  // namespace cairn
