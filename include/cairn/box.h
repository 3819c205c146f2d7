// Extents and Box: sizes and places in an n-dimensional tensor, counted in elements.
#pragma once

#include <cairn/result.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace cairn {

// More dimensions than any tensor that torch can make.
inline constexpr std::size_t kDimensionsMax = 64;

// A short list of integers, one per dimension: a shape, an offset or strides. Up to four integers are stored inline.
class Extents {
 public:
  Extents() = default;
  Extents(std::initializer_list<std::int64_t> values) : Extents(std::span(values.begin(), values.size())) {}
  explicit Extents(std::span<const std::int64_t> values);
  Extents(std::size_t count, std::int64_t value);
  Extents(const Extents& other) : count_(other.count_), inline_(other.inline_) {
    if (other.heap_) copy_heap(other);
  }
  Extents(Extents&& other) noexcept = default;
  Extents& operator=(const Extents& other) { return *this = Extents(other); }
  Extents& operator=(Extents&& other) noexcept = default;
  ~Extents() = default;

  std::size_t size() const noexcept { return count_; }
  bool empty() const noexcept { return count_ == 0; }
  const std::int64_t* data() const noexcept { return heap_ ? heap_.get() : inline_.data(); }
  std::int64_t* data() noexcept { return heap_ ? heap_.get() : inline_.data(); }
  std::span<const std::int64_t> span() const noexcept { return {data(), size()}; }
  std::int64_t operator[](std::size_t index) const noexcept { return data()[index]; }
  std::int64_t& operator[](std::size_t index) noexcept { return data()[index]; }
  const std::int64_t* begin() const noexcept { return data(); }
  const std::int64_t* end() const noexcept { return data() + size(); }

  friend bool operator==(const Extents& a, const Extents& b);

 private:
  static constexpr std::size_t kInlineCount = 4;
  void copy_heap(const Extents& other);
  std::uint32_t count_ = 0;
  std::array<std::int64_t, kInlineCount> inline_{};
  std::unique_ptr<std::int64_t[]> heap_;
};

// "[2, 3]"
std::string to_string(const Extents& extents);

// Elements of a tensor of this shape. Fails with kInvalidArgument on a negative size, on more than kDimensionsMax
// dimensions, and if the product exceeds 2^63 - 1.
Result<std::int64_t> element_count(const Extents& shape);

// Strides, in elements, of a row-major tensor of this shape (sizes of 0 count as 1, as in torch).
Extents row_major_strides(const Extents& shape);

// An axis-aligned block of a tensor. Every Box is valid: no negative number, and neither an end nor the element count
// exceeds 2^63 - 1.
class Box {
 public:
  Box() = default;  // the only element of a 0-d tensor

  // Fails with kInvalidArgument if the lists differ in length or break the rules above.
  static Result<Box> make(Extents offsets, Extents sizes);
  // The box of a whole tensor. Fails like make().
  static Result<Box> whole(Extents shape);

  std::size_t dimensions() const noexcept { return offsets_.size(); }
  const Extents& offsets() const noexcept { return offsets_; }
  const Extents& sizes() const noexcept { return sizes_; }
  std::int64_t element_count() const noexcept { return element_count_; }
  // Whether the box lies within a tensor of this shape.
  bool within(const Extents& shape) const noexcept;

  friend bool operator==(const Box& a, const Box& b) { return a.offsets_ == b.offsets_ && a.sizes_ == b.sizes_; }

 private:
  Box(Extents offsets, Extents sizes, std::int64_t count)
      : offsets_(std::move(offsets)), sizes_(std::move(sizes)), element_count_(count) {}
  Extents offsets_;
  Extents sizes_;
  std::int64_t element_count_ = 1;
};

// The common elements of two boxes. Nullopt if no element is common, or if the boxes differ in dimensions. Two 0-d
// boxes always meet.
std::optional<Box> intersection(const Box& a, const Box& b);

// "[0, 4) x [8, 16)"
std::string to_string(const Box& box);

}  // namespace cairn
