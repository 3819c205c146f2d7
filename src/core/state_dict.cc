#include <cairn/state_dict.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "core/checked.h"
#include "core/seeded_hash.h"

namespace cairn {
namespace {

constexpr std::size_t kSlotsMin = 16;

std::size_t hash_of(std::string_view fqn) { return SeededHash()(fqn); }

// Whether the distance in bytes between any two elements fits into 63 bits: Region and the loads compute distances
// without more checks. `sizes` and `strides` have equal dimensions, and the tensor is not empty. The stride of a
// dimension with a single element is never used.
bool strides_are_addressable(const TensorView& view) {
  std::int64_t elements = 1;
  for (std::size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] == 1) continue;
    const auto reach = checked_multiply(view.sizes[i], view.strides[i]);
    if (!reach || *reach == std::numeric_limits<std::int64_t>::min()) return false;
    const auto sum = checked_add(elements, std::abs(*reach));
    if (!sum) return false;
    elements = *sum;
  }
  return checked_multiply(elements, static_cast<std::int64_t>(item_bytes(view.dtype))).has_value();
}

// Checks that sizes and strides have equal dimensions, that the bytes of the elements and the distances between
// elements are countable, and that the elements have memory.
Result<void> check_view(const TensorView& view) {
  if (view.strides.size() != view.sizes.size()) {
    return Error(ErrorCode::kInvalidArgument, "sizes and strides differ in dimensions")
        .expected(to_string(view.sizes))
        .actual(to_string(view.strides));
  }
  CAIRN_TRY_ASSIGN(const std::int64_t count, element_count(view.sizes));
  if (!checked_multiply(count, static_cast<std::int64_t>(item_bytes(view.dtype)))) {
    return Error(ErrorCode::kInvalidArgument, "a tensor of more than 2^63 - 1 bytes").actual(to_string(view.sizes));
  }
  if (count != 0 && view.data == nullptr) {
    return Error(ErrorCode::kInvalidArgument, "a tensor without memory").actual(to_string(view.sizes));
  }
  if (count != 0 && !strides_are_addressable(view)) {
    return Error(ErrorCode::kInvalidArgument, "the strides of the tensor reach further than 2^63 - 1 bytes")
        .actual("sizes " + to_string(view.sizes) + ", strides " + to_string(view.strides));
  }
  return {};
}

Result<void> check_within(const Box& chunk, const Extents& global_shape, const std::string& fqn) {
  if (chunk.within(global_shape)) return {};
  return Error(ErrorCode::kInvalidArgument, "a chunk outside its tensor")
      .key(fqn)
      .expected("within " + to_string(global_shape))
      .actual(to_string(chunk));
}

// Checks a chunk against the first entry of its name.
Result<void> check_fits(const Entry& first, DType dtype, const Extents& global_shape) {
  const auto* tensor = std::get_if<TensorEntry>(&first.content);
  const auto* serialized = std::get_if<SerializedTensor>(&first.content);
  const bool is_whole = serialized != nullptr && !serialized->chunk;
  if ((tensor == nullptr && serialized == nullptr) || is_whole) {
    return Error(ErrorCode::kInvalidArgument, "a key that was added twice").key(first.fqn);
  }
  const DType first_dtype = tensor != nullptr ? tensor->local.dtype : serialized->dtype;
  const Extents& first_shape = tensor != nullptr ? tensor->global_shape : serialized->shape;
  if (first_dtype == dtype && first_shape == global_shape) return {};
  return Error(ErrorCode::kInvalidArgument, "chunks of one tensor differ in dtype or global shape")
      .key(first.fqn)
      .expected(std::string(name_of(first_dtype)) + " " + to_string(first_shape))
      .actual(std::string(name_of(dtype)) + " " + to_string(global_shape));
}

}  // namespace

std::string fqn_of(const Path& path) {
  std::size_t length = path.size();
  for (const PathElement& element : path) {
    if (const auto* key = std::get_if<std::string>(&element)) length += key->size();
  }
  std::string fqn;
  fqn.reserve(length);
  for (const PathElement& element : path) {
    if (&element != &path.front()) fqn += '.';
    if (const auto* key = std::get_if<std::string>(&element)) {
      fqn += *key;
    } else {
      fqn += std::to_string(std::get<std::int64_t>(element));
    }
  }
  return fqn;
}

std::size_t StateDict::slot_of(std::string_view fqn, std::size_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash & mask;
  const auto is_other = [&](const Slot& found) {
    return found.entry != kNoEntry && (found.hash != hash || entries_[found.entry].fqn != fqn);
  };
  while (is_other(slots_[slot])) slot = (slot + 1) & mask;
  return slot;
}

void StateDict::grow_slots(std::size_t count) {
  std::vector<Slot> old(std::bit_ceil(std::max(count, kSlotsMin)));
  old.swap(slots_);
  const std::size_t mask = slots_.size() - 1;
  for (const Slot& taken : old) {
    if (taken.entry == kNoEntry) continue;
    std::size_t slot = taken.hash & mask;
    while (slots_[slot].entry != kNoEntry) slot = (slot + 1) & mask;  // the names differ: no comparison is needed
    slots_[slot] = taken;
  }
}

void StateDict::reserve(std::size_t more) {
  const std::size_t count = entries_.size() + more;
  // Always at least doubles the capacity: many small steps would move all entries at each step.
  if (count > entries_.capacity()) entries_.reserve(std::max(count, 2 * entries_.capacity()));
  if (2 * count > slots_.size()) grow_slots(2 * count);
}

const Entry* StateDict::find(std::string_view fqn, std::size_t hash) const {
  if (slots_.empty()) return nullptr;
  const std::size_t entry = slots_[slot_of(fqn, hash)].entry;
  return entry == kNoEntry ? nullptr : &entries_[entry];
}

void StateDict::append(Entry&& entry, std::size_t hash) {
  if (2 * (entries_.size() + 1) > slots_.size()) grow_slots(2 * slots_.size());
  entries_.push_back(std::move(entry));
  Slot& slot = slots_[slot_of(entries_.back().fqn, hash)];
  if (slot.entry == kNoEntry) slot = {hash, entries_.size() - 1};
}

Result<void> StateDict::add(Entry&& entry) {
  const std::size_t hash = hash_of(entry.fqn);
  if (find(entry.fqn, hash) != nullptr) {
    return Error(ErrorCode::kInvalidArgument, "a key that was added twice").key(entry.fqn);
  }
  append(std::move(entry), hash);
  return {};
}

Result<void> StateDict::add_tensor(Path path, TensorView tensor, TensorTraits traits) {
  std::string fqn = fqn_of(path);
  if (auto checked = check_view(tensor); !checked) return std::move(checked).error().key(fqn);
  auto box = Box::whole(tensor.sizes);
  if (!box) return std::move(box).error().key(fqn);
  Extents shape = tensor.sizes;
  return add(
      {std::move(fqn), std::move(path), TensorEntry{std::move(tensor), std::move(shape), *std::move(box), traits}});
}

Result<void> StateDict::add_tensor(std::string fqn, TensorView tensor, TensorTraits traits) {
  return add_tensor(Path{std::move(fqn)}, std::move(tensor), traits);
}

Result<void> StateDict::add_chunk(Path path, TensorView local, Extents global_shape, Extents offsets,
                                  TensorTraits traits) {
  std::string fqn = fqn_of(path);
  if (auto checked = check_view(local); !checked) return std::move(checked).error().key(fqn);
  auto box = Box::make(std::move(offsets), local.sizes);
  if (!box) return std::move(box).error().key(fqn);
  CAIRN_TRY(check_within(*box, global_shape, fqn));
  const std::size_t hash = hash_of(fqn);
  if (const Entry* first = find(fqn, hash)) {
    if (auto checked = check_fits(*first, local.dtype, global_shape); !checked) return checked;
  }
  TensorEntry entry{std::move(local), std::move(global_shape), *std::move(box), traits};
  append({std::move(fqn), std::move(path), std::move(entry)}, hash);
  return {};
}

Result<void> StateDict::add_chunk(std::string fqn, TensorView local, Extents global_shape, Extents offsets) {
  return add_chunk(Path{std::move(fqn)}, std::move(local), std::move(global_shape), std::move(offsets));
}

Result<void> StateDict::add_value(Path path, Value value) {
  std::string fqn = fqn_of(path);
  return add({std::move(fqn), std::move(path), std::move(value)});
}

Result<void> StateDict::add_value(std::string fqn, Value value) {
  return add_value(Path{std::move(fqn)}, std::move(value));
}

Result<void> StateDict::add_serialized(Path path, SerializedValue value) {
  std::string fqn = fqn_of(path);
  return add({std::move(fqn), std::move(path), std::move(value)});
}

Result<void> StateDict::add_serialized(Path path, SerializedTensor tensor) {
  std::string fqn = fqn_of(path);
  if (!tensor.chunk) return add({std::move(fqn), std::move(path), std::move(tensor)});
  CAIRN_TRY(check_within(*tensor.chunk, tensor.shape, fqn));
  const std::size_t hash = hash_of(fqn);
  if (const Entry* first = find(fqn, hash)) {
    CAIRN_TRY(check_fits(*first, tensor.dtype, tensor.shape));
  }
  append({std::move(fqn), std::move(path), std::move(tensor)}, hash);
  return {};
}

const Entry* StateDict::find(std::string_view fqn) const { return find(fqn, hash_of(fqn)); }

const Value* StateDict::value(std::string_view fqn) const {
  const Entry* entry = find(fqn);
  return entry == nullptr ? nullptr : std::get_if<Value>(&entry->content);
}

}  // namespace cairn
