// CachedStorage: a view of a storage with a model of the page cache. The views of several ranks may have a common
// cache. All files of the views allow direct I/O.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/checked.h"
#include "os/page_buffer.h"
#include "storage/testing/view_storage.h"

namespace cairn::storage {

// The cached pages of all files of a storage. Thread-safe.
class CachedPages {
 public:
  // Brings the missing pages of a range from the storage.
  void bring(const std::string& file, std::uint64_t offset, std::uint64_t length) {
    const std::lock_guard lock(mutex_);
    for (std::uint64_t page = offset / os::kPageBytes; page * os::kPageBytes < offset + length; ++page) {
      if (pages_.emplace(file, page).second) bytes_from_storage_ += os::kPageBytes;
    }
  }
  void drop(const std::string& file, std::uint64_t offset, std::uint64_t length) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t begin = align_up(offset, os::kPageBytes);
    for (std::uint64_t at = begin; at + os::kPageBytes <= offset + length; at += os::kPageBytes) {
      pages_.erase({file, at / os::kPageBytes});
    }
  }
  bool has_most(const std::string& file, std::uint64_t offset, std::uint64_t length) const {
    const std::lock_guard lock(mutex_);
    std::uint64_t bytes = 0;
    for (std::uint64_t page = offset / os::kPageBytes; page * os::kPageBytes < offset + length; ++page) {
      if (pages_.count({file, page}) != 0) bytes += os::kPageBytes;
    }
    return bytes * 2 >= length;
  }
  void read_past(std::uint64_t length) {
    const std::lock_guard lock(mutex_);
    bytes_from_storage_ += length;
  }

  std::uint64_t bytes() const {
    const std::lock_guard lock(mutex_);
    return pages_.size() * os::kPageBytes;
  }
  // By all reads, prefetches and direct reads.
  std::uint64_t bytes_from_storage() const {
    const std::lock_guard lock(mutex_);
    return bytes_from_storage_;
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::pair<std::string, std::uint64_t>> pages_;
  std::uint64_t bytes_from_storage_ = 0;
};

class CachedStorage final : public ViewStorage {
 public:
  // `storage` and `pages` outlive the view and its files.
  CachedStorage(Storage& storage, CachedPages& pages) : ViewStorage(storage), pages_(pages) {}

  Result<std::unique_ptr<ReadableFile>> open(std::string_view name, bool follow_links) const override {
    CAIRN_TRY_ASSIGN(auto file, ViewStorage::open(name, follow_links));
    return std::unique_ptr<ReadableFile>(std::make_unique<CachedFile>(std::move(file), std::string(name), pages_));
  }

 private:
  class CachedFile final : public ReadableFile {
   public:
    CachedFile(std::unique_ptr<ReadableFile> file, std::string name, CachedPages& pages)
        : file_(std::move(file)), name_(std::move(name)), pages_(pages) {}
    std::uint64_t size() const override { return file_->size(); }
    Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) const override {
      pages_.bring(name_, offset, target.size());
      return file_->read_at(offset, target);
    }
    std::optional<DirectAlignment> direct_alignment() const override {
      return DirectAlignment{os::kPageBytes, os::kPageBytes};
    }
    Result<void> read_direct_at(std::uint64_t offset, std::span<std::byte> target) const override {
      const bool ends_in_last_block = offset + target.size() <= align_up(size(), os::kPageBytes);
      if (ends_in_last_block) target = target.first(std::min<std::uint64_t>(target.size(), size() - offset));
      pages_.read_past(target.size());
      return file_->read_at(offset, target);
    }
    bool is_cached(std::uint64_t offset, std::uint64_t length) const override {
      return pages_.has_most(name_, offset, length);
    }
    void prefetch(std::uint64_t offset, std::uint64_t length) const override { pages_.bring(name_, offset, length); }
    void drop_cached(std::uint64_t offset, std::uint64_t length) const override { pages_.drop(name_, offset, length); }

   private:
    std::unique_ptr<ReadableFile> file_;
    std::string name_;
    CachedPages& pages_;
  };

  CachedPages& pages_;
};

}  // namespace cairn::storage
