// CountingStorage: forwards every call to a storage that outlives the view, and counts the calls. A read of a file
// counts as a call too.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "storage/testing/view_storage.h"

namespace cairn::storage {

class CountingStorage : public ViewStorage {
 public:
  // `calls` outlives the storage and its files.
  CountingStorage(Storage& storage, std::atomic<std::uint64_t>& calls) : ViewStorage(storage), calls_(calls) {}

  Result<void> join_folder(std::string_view name) override { return ++calls_, ViewStorage::join_folder(name); }
  Result<std::unique_ptr<WritableFile>> create(std::string_view name, const CreateOptions& options) override {
    return ++calls_, ViewStorage::create(name, options);
  }
  Result<void> create_whole(std::string_view name, std::string_view bytes, Durability durability) override {
    return ++calls_, ViewStorage::create_whole(name, bytes, durability);
  }
  Result<std::unique_ptr<ReadableFile>> open(std::string_view name, bool follow_links) const override {
    ++calls_;
    CAIRN_TRY_ASSIGN(auto file, ViewStorage::open(name, follow_links));
    return std::unique_ptr<ReadableFile>(std::make_unique<CountingFile>(std::move(file), calls_));
  }
  // A listing may cost a call per entry.
  Result<std::vector<ListedFile>> list(std::string_view folder) const override {
    Result<std::vector<ListedFile>> files = ViewStorage::list(folder);
    calls_ += 1 + (files ? files->size() : 0);
    return files;
  }
  Result<void> publish(std::string_view from, std::string_view to) override {
    return ++calls_, ViewStorage::publish(from, to);
  }
  Result<void> replace(std::string_view from, std::string_view to) override {
    return ++calls_, ViewStorage::replace(from, to);
  }
  Result<void> remove(std::string_view name) override { return ++calls_, ViewStorage::remove(name); }
  Result<void> sync(std::string_view folder) override { return ++calls_, ViewStorage::sync(folder); }
  Result<void> rewrite(std::string_view name, std::string_view bytes) override {
    return ++calls_, ViewStorage::rewrite(name, bytes);
  }
  Result<void> touch(std::string_view name) override { return ++calls_, ViewStorage::touch(name); }
  Result<double> touched_at(std::string_view name) const override { return ++calls_, ViewStorage::touched_at(name); }

 private:
  class CountingFile : public ReadableFile {
   public:
    CountingFile(std::unique_ptr<ReadableFile> file, std::atomic<std::uint64_t>& calls)
        : file_(std::move(file)), calls_(calls) {}
    std::uint64_t size() const override { return file_->size(); }
    Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) const override {
      return ++calls_, file_->read_at(offset, target);
    }
    std::optional<DirectAlignment> direct_alignment() const override { return file_->direct_alignment(); }
    Result<void> read_direct_at(std::uint64_t offset, std::span<std::byte> target) const override {
      return ++calls_, file_->read_direct_at(offset, target);
    }
    bool is_cached(std::uint64_t offset, std::uint64_t length) const override {
      return file_->is_cached(offset, length);
    }
    std::size_t requests_in_flight() const override { return file_->requests_in_flight(); }
    std::string tag() const override { return file_->tag(); }
    void prefetch(std::uint64_t offset, std::uint64_t length) const override { file_->prefetch(offset, length); }
    void drop_cached(std::uint64_t offset, std::uint64_t length) const override { file_->drop_cached(offset, length); }

   private:
    std::unique_ptr<ReadableFile> file_;
    std::atomic<std::uint64_t>& calls_;
  };

  std::atomic<std::uint64_t>& calls_;
};

}  // namespace cairn::storage
