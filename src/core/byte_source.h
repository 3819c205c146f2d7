// ByteSource: bytes that can be read at an offset. Decoders read files and memory through a ByteSource.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace cairn {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const = 0;
  // Fills all of `target` from `offset` on, or fails; never a short read. kCorrupt if the range is not within size().
  virtual Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) const = 0;

 protected:
  // Whether [offset, offset + length) lies inside, without overflow.
  bool holds(std::uint64_t offset, std::uint64_t length) const { return length <= size() && offset <= size() - length; }
};

// Bytes in memory, not owned.
class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) const override;

 private:
  std::span<const std::byte> bytes_;
};

// A part of a second source; the second source must outlive the window.
class SourceWindow final : public ByteSource {
 public:
  // Fails with kCorrupt if the window does not lie inside `source`.
  static Result<SourceWindow> make(const ByteSource& source, std::uint64_t offset, std::uint64_t length);
  std::uint64_t size() const override { return length_; }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) const override;

 private:
  SourceWindow(const ByteSource& source, std::uint64_t offset, std::uint64_t length)
      : source_(&source), offset_(offset), length_(length) {}
  const ByteSource* source_;
  std::uint64_t offset_;
  std::uint64_t length_;
};

}  // namespace cairn
