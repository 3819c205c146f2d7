#include "core/byte_source.h"

#include <string>

namespace cairn {
namespace {

Error beyond_end(std::uint64_t offset, std::uint64_t length, std::uint64_t size) {
  return Error(ErrorCode::kCorrupt, "bytes beyond the end")
      .offset(offset)
      .expected(std::to_string(length) + " bytes")
      .actual(std::to_string(offset < size ? size - offset : 0) + " bytes");
}

}  // namespace

Result<void> MemorySource::read_at(std::uint64_t offset, std::span<std::byte> target) const {
  if (!holds(offset, target.size())) return beyond_end(offset, target.size(), size());
  if (!target.empty()) std::memcpy(target.data(), bytes_.data() + offset, target.size());
  return {};
}

Result<SourceWindow> SourceWindow::make(const ByteSource& source, std::uint64_t offset, std::uint64_t length) {
  const std::uint64_t size = source.size();
  if (length > size || offset > size - length) return beyond_end(offset, length, size);
  return SourceWindow(source, offset, length);
}

Result<void> SourceWindow::read_at(std::uint64_t offset, std::span<std::byte> target) const {
  if (!holds(offset, target.size())) return beyond_end(offset, target.size(), size());
  return source_->read_at(offset_ + offset, target);
}

}  // namespace cairn
