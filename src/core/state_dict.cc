#include <cairn/state_dict.h>

#include "core/checked.h"

namespace cairn {
namespace {

// Strides must belong to the sizes, and the extent that they span must be countable in bytes.
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
  return {};
}

}  // namespace

std::string fqn_of(const Path& path) {
  std::string fqn;
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

Result<void> StateDict::add(Entry entry) {
  const auto [place, fresh] = by_fqn_.try_emplace(entry.fqn, entries_.size());
  if (!fresh) {
    const auto* first = std::get_if<TensorEntry>(&entries_[place->second].content);
    const auto* chunk = std::get_if<TensorEntry>(&entry.content);
    if (first == nullptr || chunk == nullptr) {
      return Error(ErrorCode::kInvalidArgument, "a key that was added twice").key(entry.fqn);
    }
    if (first->local.dtype != chunk->local.dtype || !(first->global_shape == chunk->global_shape)) {
      return Error(ErrorCode::kInvalidArgument, "chunks of one tensor differ in dtype or global shape")
          .key(entry.fqn)
          .expected(std::string(name_of(first->local.dtype)) + " " + to_string(first->global_shape))
          .actual(std::string(name_of(chunk->local.dtype)) + " " + to_string(chunk->global_shape));
    }
  }
  entries_.push_back(std::move(entry));
  return {};
}

Result<void> StateDict::add_tensor(Path path, TensorView tensor, TensorTraits traits) {
  Extents shape = tensor.sizes;
  Extents zeros(shape.size(), 0);
  return add_chunk(std::move(path), std::move(tensor), std::move(shape), std::move(zeros), traits);
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
  if (!box->within(global_shape)) {
    return Error(ErrorCode::kInvalidArgument, "a chunk outside its tensor")
        .key(fqn)
        .expected("within " + to_string(global_shape))
        .actual(to_string(*box));
  }
  TensorEntry entry{std::move(local), std::move(global_shape), std::move(*box), traits};
  return add({std::move(fqn), std::move(path), std::move(entry)});
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
  return add({std::move(fqn), std::move(path), std::move(tensor)});
}

const Entry* StateDict::find(std::string_view fqn) const {
  const auto found = by_fqn_.find(std::string(fqn));
  return found == by_fqn_.end() ? nullptr : &entries_[found->second];
}

const Value* StateDict::value(std::string_view fqn) const {
  const Entry* entry = find(fqn);
  return entry == nullptr ? nullptr : std::get_if<Value>(&entry->content);
}

}  // namespace cairn
