#include <cairn/tensor.h>

#include <algorithm>

#include "core/checked.h"

namespace cairn {

Extents::Extents(std::span<const std::int64_t> values) : count_(static_cast<std::uint32_t>(values.size())) {
  if (count_ > kInlineCount) heap_ = std::make_unique<std::int64_t[]>(count_);
  std::copy(values.begin(), values.end(), data());
}

Extents::Extents(std::size_t count, std::int64_t value) : count_(static_cast<std::uint32_t>(count)) {
  if (count_ > kInlineCount) heap_ = std::make_unique<std::int64_t[]>(count_);
  std::fill_n(data(), count, value);
}

void Extents::copy_heap(const Extents& other) {
  heap_ = std::make_unique<std::int64_t[]>(count_);
  std::copy(other.begin(), other.end(), heap_.get());
}

bool operator==(const Extents& a, const Extents& b) { return std::ranges::equal(a.span(), b.span()); }

std::string to_string(const Extents& extents) {
  std::string text = "[";
  for (std::size_t i = 0; i < extents.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(extents[i]);
  }
  return text += "]";
}

Result<std::int64_t> element_count(const Extents& shape) {
  if (shape.size() > kDimensionsMax) {
    return Error(ErrorCode::kInvalidArgument, "too many dimensions")
        .expected("at most " + std::to_string(kDimensionsMax))
        .actual(std::to_string(shape.size()));
  }
  std::int64_t count = 1;
  bool none = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return Error(ErrorCode::kInvalidArgument, "a negative size").actual(to_string(shape));
    if (size == 0) {
      none = true;  // continue: a negative size may follow
      continue;
    }
    const std::optional<std::int64_t> product = checked_multiply(count, size);
    if (!product) {
      return Error(ErrorCode::kInvalidArgument, "a shape of more than 2^63 - 1 elements").actual(to_string(shape));
    }
    count = *product;
  }
  return none ? 0 : count;
}

Extents row_major_strides(const Extents& shape) {
  Extents strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) {
    // Must not overflow for an unchecked shape either; the user of the strides refuses such strides.
    if (__builtin_mul_overflow(strides[i], std::max<std::int64_t>(shape[i], 1), &strides[i - 1])) strides[i - 1] = 0;
  }
  return strides;
}

Result<Box> Box::make(Extents offsets, Extents sizes) {
  if (offsets.size() != sizes.size()) {
    return Error(ErrorCode::kInvalidArgument, "offsets and sizes of a chunk differ in dimensions")
        .expected(to_string(offsets))
        .actual(to_string(sizes));
  }
  CAIRN_TRY_ASSIGN(const std::int64_t count, cairn::element_count(sizes));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (offsets[i] < 0) return Error(ErrorCode::kInvalidArgument, "a negative offset").actual(to_string(offsets));
    if (!checked_add(offsets[i], sizes[i])) {
      return Error(ErrorCode::kInvalidArgument, "a chunk that ends beyond 2^63 - 1")
          .actual("offsets " + to_string(offsets) + ", sizes " + to_string(sizes));
    }
  }
  return Box(std::move(offsets), std::move(sizes), count);
}

Result<Box> Box::whole(Extents shape) {
  Extents zeros(shape.size(), 0);
  return make(std::move(zeros), std::move(shape));
}

bool Box::within(const Extents& shape) const noexcept {
  if (shape.size() != dimensions()) return false;
  for (std::size_t i = 0; i < dimensions(); ++i) {
    if (offsets_[i] + sizes_[i] > shape[i]) return false;  // no overflow: make() refused overflowing boxes
  }
  return true;
}

std::optional<Box> intersection(const Box& a, const Box& b) {
  if (a.dimensions() != b.dimensions()) return std::nullopt;
  Extents offsets(a.dimensions(), 0);
  Extents sizes(a.dimensions(), 0);
  for (std::size_t i = 0; i < a.dimensions(); ++i) {
    const std::int64_t begin = std::max(a.offsets()[i], b.offsets()[i]);
    const std::int64_t end = std::min(a.offsets()[i] + a.sizes()[i], b.offsets()[i] + b.sizes()[i]);
    if (end <= begin) return std::nullopt;
    offsets[i] = begin;
    sizes[i] = end - begin;
  }
  return std::move(Box::make(std::move(offsets), std::move(sizes))).value();  // a part of a valid box is valid
}

std::string to_string(const Box& box) {
  if (box.dimensions() == 0) return "[]";
  std::string text;
  for (std::size_t i = 0; i < box.dimensions(); ++i) {
    if (i != 0) text += " x ";
    text += "[" + std::to_string(box.offsets()[i]) + ", " + std::to_string(box.offsets()[i] + box.sizes()[i]) + ")";
  }
  return text;
}

}  // namespace cairn
