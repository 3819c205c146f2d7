// DType, Device, Extents, Box, TensorView: the memory of a tensor, and sizes and places in a tensor.
//
// All numbers but those of bytes count elements.
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
#include <string_view>
#include <utility>

namespace cairn {

// The element types of torch 2.13, by torch's names. The numbers are part of the format (docs/format.md): never reuse
// or change a number.
enum class DType : std::uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kComplex32 = 4,
  kComplex64 = 5,
  kComplex128 = 6,
  kUInt8 = 7,
  kInt8 = 8,
  kInt16 = 9,
  kInt32 = 10,
  kInt64 = 11,
  kBool = 12,
  kUInt16 = 13,
  kUInt32 = 14,
  kUInt64 = 15,
  kFloat8E4M3FN = 16,
  kFloat8E5M2 = 17,
  kFloat8E4M3FNUZ = 18,
  kFloat8E5M2FNUZ = 19,
  kFloat8E8M0FNU = 20,
  kFloat4E2M1FNx2 = 21,  // two elements in a byte; torch counts the bytes
  kQUInt8 = 22,          // quantised types are carried as torch.save payloads only
  kQInt8 = 23,
  kQInt32 = 24,
  kQUInt4x2 = 25,
  kQUInt2x4 = 26,
  kBits1x8 = 27,
  kBits2x4 = 28,
  kBits4x2 = 29,
  kBits8 = 30,
  kBits16 = 31,
};
inline constexpr std::size_t kDTypeCount = 32;

// torch's name without the module: "float32", "bfloat16", "float8_e4m3fn".
std::string_view name_of(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);
std::optional<DType> dtype_from_code(std::uint8_t code);

// Bytes of an element, as torch counts elements.
std::size_t item_bytes(DType dtype);

// Real floating-point types, which DCP converts among each other on load. False for complex types.
bool is_floating_point(DType dtype);
bool is_complex(DType dtype);
bool is_quantized(DType dtype);

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

// A list that several tensors share: tensors of a state mostly have few different strides. Owners: the holders.
using SharedExtents = std::shared_ptr<const Extents>;

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

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

// The processor whose memory holds a tensor, and the stream on which the tensor's user works. A plain value. Device{}
// is the memory of the CPU.
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  std::int32_t ordinal = 0;  // kCuda: the number of the device in this process, as the CUDA driver counts
  // kCuda: the CUstream of the caller's work on the tensor; 0 is the legacy default stream. Work that the stream holds
  // at the time of a call comes before the call's copies. Cairn queues no copies on this stream.
  std::uintptr_t stream = 0;

  static Device cuda(std::int32_t ordinal, std::uintptr_t stream = 0) { return {DeviceKind::kCuda, ordinal, stream}; }
  bool is_cpu() const noexcept { return kind == DeviceKind::kCpu; }
  friend bool operator==(const Device&, const Device&) = default;
};

// "cpu", or "cuda:1".
inline std::string to_string(const Device& device) {
  return device.is_cpu() ? "cpu" : "cuda:" + std::to_string(device.ordinal);
}

// Live memory of a tensor, or of a rank's part of a tensor. `strides` count elements and may be 0 or negative.
struct TensorView {
  void* data = nullptr;  // the element at index 0, ..., 0; may be null if there are no elements
  DType dtype = DType::kFloat32;
  Extents sizes;
  Extents strides;
  // Where `data` is. A call that takes tensors of the CPU alone fails with kUnsupported for other tensors.
  Device device = {};

  static TensorView contiguous(void* data, DType dtype, Extents sizes, Device device = {}) {
    Extents strides = row_major_strides(sizes);
    return {data, dtype, std::move(sizes), std::move(strides), device};
  }
  static TensorView contiguous(const void* data, DType dtype, Extents sizes) {  // for a save, which only reads
    return contiguous(const_cast<void*>(data), dtype, std::move(sizes));
  }
};

}  // namespace cairn
