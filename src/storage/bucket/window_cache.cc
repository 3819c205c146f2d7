#include "storage/bucket/window_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cairn::storage {

std::uint64_t WindowCache::new_file() {
  const std::lock_guard lock(mutex_);
  return ++files_;
}

void WindowCache::forget(std::uint64_t file) {
  const std::lock_guard lock(mutex_);
  windows_.remove_if([file](const Window& window) { return window.file == file; });
}

Result<void> WindowCache::read(std::uint64_t file, std::uint64_t size, std::uint64_t offset,
                               std::span<std::byte> target, const Fetch& fetch) {
  while (!target.empty()) {
    const std::uint64_t from_end = (size - offset - 1) / kWindowBytes;  // the window's number
    const std::uint64_t end = size - from_end * kWindowBytes;
    const std::uint64_t begin = end > kWindowBytes ? end - kWindowBytes : 0;
    Bytes bytes = find(file, end);
    if (!bytes) {
      std::vector<std::byte> fetched(end - begin);
      CAIRN_TRY(fetch(begin, fetched));
      bytes = std::make_shared<const std::vector<std::byte>>(std::move(fetched));
      keep(file, end, bytes);
    }
    const std::uint64_t length = std::min<std::uint64_t>(end - offset, target.size());
    std::memcpy(target.data(), bytes->data() + (offset - begin), length);
    target = target.subspan(length);
    offset += length;
  }
  return {};
}

WindowCache::Bytes WindowCache::find(std::uint64_t file, std::uint64_t end) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(windows_.begin(), windows_.end(),
                                  [&](const Window& window) { return window.file == file && window.end == end; });
  if (found == windows_.end()) return nullptr;
  windows_.splice(windows_.begin(), windows_, found);
  return found->bytes;
}

void WindowCache::keep(std::uint64_t file, std::uint64_t end, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  windows_.push_front({file, end, std::move(bytes)});
  if (windows_.size() > kWindowsMax) windows_.pop_back();
}

}  // namespace cairn::storage
