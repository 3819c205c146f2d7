#include "format/dcp/location_join.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace cairn::dcp {
namespace {

// Marks a chunk without a location.
constexpr std::uint32_t kNoFile = std::numeric_limits<std::uint32_t>::max();

}  // namespace

LocationJoin::LocationJoin(Catalog& catalog) : catalog_(catalog) {
  for (CatalogTensor& tensor : catalog_.tensors) {
    for (ItemLocation& location : tensor.locations) location.file = kNoFile;
  }
}

LocationJoin::Target LocationJoin::find(std::string_view fqn) const {
  if (const CatalogTensor* tensor = catalog_.find_tensor(fqn)) {
    return {Target::Kind::kTensor, static_cast<std::size_t>(tensor - catalog_.tensors.data())};
  }
  if (const CatalogValue* value = catalog_.find_value(fqn)) {
    return {Target::Kind::kValue, static_cast<std::size_t>(value - catalog_.values.data())};
  }
  return {};
}

std::span<const std::int64_t> LocationJoin::offsets_of(const CatalogTensor& tensor, std::size_t chunk) const {
  const std::size_t dimensions = tensor.shape.size();
  return {tensor.boxes.data() + chunk * 2 * dimensions, dimensions};
}

bool LocationJoin::begins_at(const CatalogTensor& tensor, std::size_t chunk,
                             std::span<const std::int64_t> offsets) const {
  const std::span<const std::int64_t> own = offsets_of(tensor, chunk);
  return std::equal(own.begin(), own.end(), offsets.begin(), offsets.end());
}

const std::vector<std::uint32_t>& LocationJoin::sorted_chunks(std::size_t tensor_index) {
  const auto [entry, is_new] = sorted_.try_emplace(tensor_index);
  std::vector<std::uint32_t>& order = entry->second;
  if (!is_new) return order;
  const CatalogTensor& tensor = catalog_.tensors[tensor_index];
  order.resize(tensor.chunk_count());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const auto left = offsets_of(tensor, a);
    const auto right = offsets_of(tensor, b);
    return std::lexicographical_compare(left.begin(), left.end(), right.begin(), right.end());
  });
  return order;
}

void LocationJoin::assign(const Target& target, std::optional<std::span<const std::int64_t>> offsets,
                          std::optional<std::int64_t> hint, const ItemLocation& location) {
  if (target.kind == Target::Kind::kValue) catalog_.values[target.index].location = location;
  if (target.kind != Target::Kind::kTensor) return;
  CatalogTensor& tensor = catalog_.tensors[target.index];
  if (!offsets || offsets->size() != tensor.shape.size()) return;
  if (hint && *hint >= 0 && static_cast<std::uint64_t>(*hint) < tensor.chunk_count() &&
      begins_at(tensor, static_cast<std::size_t>(*hint), *offsets)) {
    tensor.locations[static_cast<std::size_t>(*hint)] = location;
    return;
  }
  const std::vector<std::uint32_t>& order = sorted_chunks(target.index);
  const auto first =
      std::lower_bound(order.begin(), order.end(), *offsets, [&](std::uint32_t chunk, const auto& wanted) {
        const auto own = offsets_of(tensor, chunk);
        return std::lexicographical_compare(own.begin(), own.end(), wanted.begin(), wanted.end());
      });
  // The first of several chunks with equal offsets. finish() sets the rest.
  if (first != order.end() && begins_at(tensor, *first, *offsets)) tensor.locations[*first] = location;
}

Result<void> LocationJoin::finish() {
  for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
    CatalogTensor& tensor = catalog_.tensors[i];
    const auto is_open = [](const ItemLocation& location) { return location.file == kNoFile; };
    if (std::none_of(tensor.locations.begin(), tensor.locations.end(), is_open)) continue;
    const std::vector<std::uint32_t>& order = sorted_chunks(i);
    for (auto begin = order.begin(); begin != order.end();) {
      const auto offsets = offsets_of(tensor, *begin);
      const auto end =
          std::find_if(begin, order.end(), [&](std::uint32_t chunk) { return !begins_at(tensor, chunk, offsets); });
      const auto known =
          std::find_if(begin, end, [&](std::uint32_t chunk) { return !is_open(tensor.locations[chunk]); });
      const ItemLocation shared = known == end ? ItemLocation() : tensor.locations[*known];
      for (auto chunk = begin; chunk != end; ++chunk) {
        if (is_open(tensor.locations[*chunk])) tensor.locations[*chunk] = shared;
      }
      begin = end;
    }
  }
  return check_values();
}

Result<void> LocationJoin::check_values() const {
  std::vector<const CatalogValue*> values;
  for (const CatalogValue& value : catalog_.values) {
    if (value.location.length != 0) values.push_back(&value);
  }
  const auto place = [](const CatalogValue* value) { return std::pair(value->location.file, value->location.offset); };
  const auto lies_before = [&](const CatalogValue* a, const CatalogValue* b) { return place(a) < place(b); };
  if (!std::is_sorted(values.begin(), values.end(), lies_before)) std::sort(values.begin(), values.end(), lies_before);
  const auto overlap = std::adjacent_find(values.begin(), values.end(), [](const auto* a, const auto* b) {
    return a->location.file == b->location.file && b->location.offset - a->location.offset < a->location.length;
  });
  if (overlap == values.end()) return {};
  const CatalogValue& first = **overlap;
  const CatalogValue& second = **std::next(overlap);
  return Error(ErrorCode::kCorrupt, "two values that share bytes of a file")
      .key(second.fqn)
      .file(catalog_.files[second.location.file])
      .offset(second.location.offset)
      .expected("none of '" + first.fqn + "', which ends at " +
                std::to_string(first.location.offset + first.location.length));
}

}  // namespace cairn::dcp
