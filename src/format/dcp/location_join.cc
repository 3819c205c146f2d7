#include "format/dcp/location_join.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <unordered_map>

#include "core/seeded_hash.h"

namespace cairn::dcp {
namespace {

// Marks a chunk without a location.
constexpr std::uint32_t kNoFile = std::numeric_limits<std::uint32_t>::max();

// A name without its empty and "." parts, which change nothing about the file that is opened.
std::string plain_name(std::string_view name) {
  std::string plain(name.starts_with('/') ? "/" : "");
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (!part.empty() && part != ".") {
      if (!plain.empty() && plain.back() != '/') plain += '/';
      plain += part;
    }
    begin = end + 1;
  }
  return plain;
}

bool is_plain(std::string_view name) {
  return !name.starts_with("./") && !name.ends_with('/') && !name.ends_with("/.") &&
         name.find("//") == std::string_view::npos && name.find("/./") == std::string_view::npos;
}

// By file: the first file with the same plain name. Empty if all names are plain, and each file is its own.
std::vector<std::uint32_t> first_spellings(const std::vector<std::string>& files) {
  if (std::all_of(files.begin(), files.end(), [](const std::string& name) { return is_plain(name); })) return {};
  std::unordered_map<std::string, std::uint32_t, SeededHash> known;
  std::vector<std::uint32_t> first;
  first.reserve(files.size());
  for (const std::string& name : files) {
    const auto number = static_cast<std::uint32_t>(first.size());
    first.push_back(known.try_emplace(plain_name(name), number).first->second);
  }
  return first;
}

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
  const std::vector<std::uint32_t> first = first_spellings(catalog_.files);
  const auto file_of = [&first](const CatalogValue* value) {
    return first.empty() ? value->location.file : first[value->location.file];
  };
  const auto place = [&](const CatalogValue* value) { return std::pair(file_of(value), value->location.offset); };
  const auto lies_before = [&](const CatalogValue* a, const CatalogValue* b) { return place(a) < place(b); };
  if (!std::is_sorted(values.begin(), values.end(), lies_before)) std::sort(values.begin(), values.end(), lies_before);
  const auto overlap = std::adjacent_find(values.begin(), values.end(), [&](const auto* a, const auto* b) {
    return file_of(a) == file_of(b) && b->location.offset - a->location.offset < a->location.length;
  });
  if (overlap == values.end()) return {};
  const CatalogValue& earlier = **overlap;
  const CatalogValue& second = **std::next(overlap);
  return Error(ErrorCode::kCorrupt, "two values that share bytes of a file")
      .key(second.fqn)
      .file(catalog_.files[second.location.file])
      .offset(second.location.offset)
      .expected("none of '" + earlier.fqn + "', which ends at " +
                std::to_string(earlier.location.offset + earlier.location.length));
}

}  // namespace cairn::dcp
