// FaultyModelStorage: forwards every call to the storage of a safetensors model, and fails as the test demands. For
// tests.
#pragma once

#include <cerrno>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "format/safetensors/index.h"
#include "storage/testing/view_storage.h"

namespace cairn::commit {

class FaultyModelStorage final : public storage::ViewStorage {
 public:
  using ViewStorage::ViewStorage;
  std::string unremovable, unreadable, lost_answer;
  bool lists = true, locks = true;

  Result<void> remove(std::string_view name) override {
    return name == unremovable ? Result<void>(Error::from_errno(EPERM, "removing")) : ViewStorage::remove(name);
  }
  Result<std::unique_ptr<storage::ReadableFile>> open(std::string_view name, bool follow_links) const override {
    if (name == unreadable) return Error::from_errno(EIO, "opening");
    if (name == safetensors::kIndexName && stale_reads_left_ > 0) {
      --stale_reads_left_;
      return Error::from_errno(ESTALE, "opening");
    }
    return ViewStorage::open(name, follow_links);
  }
  Result<void> replace(std::string_view from, std::string_view to) override {
    CAIRN_TRY(ViewStorage::replace(from, to));
    if (to != lost_answer) return {};
    unreadable = to;
    return Error::from_errno(EIO, "renaming");
  }
  Result<std::vector<storage::ListedFile>> list(std::string_view folder) const override {
    return lists ? ViewStorage::list(folder) : Error::from_errno(EIO, "listing");
  }
  Result<std::unique_ptr<storage::StorageLock>> lock() override {
    return locks ? ViewStorage::lock() : std::unique_ptr<storage::StorageLock>();
  }
  // The next `reads` reads of the index fail with ESTALE.
  void go_stale(int reads) { stale_reads_left_ = reads; }

 private:
  mutable int stale_reads_left_ = 0;
};

}  // namespace cairn::commit
