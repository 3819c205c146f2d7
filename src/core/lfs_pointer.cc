#include "core/lfs_pointer.h"

#include <array>
#include <string>
#include <string_view>

namespace cairn {
namespace {

constexpr std::string_view kFirstLine = "version https://git-lfs.github.com/spec/v1\n";
constexpr std::uint64_t kBytesMax = 1024;  // by the specification of Git LFS, less

}  // namespace

std::optional<Error> lfs_pointer_error(const ByteSource& file) {
  if (file.size() < kFirstLine.size() || file.size() > kBytesMax) return std::nullopt;
  std::array<std::byte, kFirstLine.size()> first{};
  if (!file.read_at(0, first)) return std::nullopt;
  if (std::string_view(reinterpret_cast<const char*>(first.data()), first.size()) != kFirstLine) return std::nullopt;
  return Error(ErrorCode::kCorrupt, "the file is a Git LFS pointer, not the file itself; run 'git lfs pull'")
      .actual("a text of " + std::to_string(file.size()) + " bytes");
}

}  // namespace cairn
