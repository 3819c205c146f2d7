// Loads by one process while a save replaces the checkpoint.
#include <cairn/cairn.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/open_calls.h"
#include "save/save_calls.h"
#include "storage/testing/model_storage.h"
#include "storage/testing/view_storage.h"

namespace cairn {
namespace {

// A file whose descriptor is closed and whose name is gone once `is_gone` is true.
class VanishingFile final : public storage::ReadableFile {
 public:
  VanishingFile(std::unique_ptr<ReadableFile> file, const bool& is_gone) : file_(std::move(file)), is_gone_(is_gone) {}
  std::uint64_t size() const override { return file_->size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) const override {
    if (is_gone_) return Error(ErrorCode::kNotFound, "no such file");
    return file_->read_at(offset, target);
  }
  std::optional<DirectAlignment> direct_alignment() const override { return std::nullopt; }
  Result<void> read_direct_at(std::uint64_t offset, std::span<std::byte> target) const override {
    return read_at(offset, target);
  }
  bool is_cached(std::uint64_t, std::uint64_t) const override { return true; }

 private:
  std::unique_ptr<ReadableFile> file_;
  const bool& is_gone_;
};

class VanishingStorage final : public storage::ViewStorage {
 public:
  VanishingStorage(storage::Storage& storage, const bool& is_gone) : ViewStorage(storage), is_gone_(is_gone) {}
  Result<std::unique_ptr<storage::ReadableFile>> open(std::string_view name, bool follow_links) const override {
    CAIRN_TRY_ASSIGN(std::unique_ptr<storage::ReadableFile> file, ViewStorage::open(name, follow_links));
    if (!name.ends_with(".distcp")) return file;
    return std::unique_ptr<storage::ReadableFile>(std::make_unique<VanishingFile>(std::move(file), is_gone_));
  }

 private:
  const bool& is_gone_;
};

TEST(ReplacedLoad, LostFileReportsTheReplacement) {
  storage::ModelStorage disk;
  std::vector<float> weights(1000, 1.0F);
  StateDict state;
  ASSERT_TRUE(state.add_tensor("w", TensorView::contiguous(weights.data(), DType::kFloat32, {1000})));
  const checkpointer::SaveDirectory directory{"replaced", storage::ModelStorage::opening(disk)};
  ASSERT_TRUE(checkpointer::save_into(directory, state, {}));
  for (const bool is_replaced : {false, true}) {
    bool is_gone = false;
    auto checkpoint = checkpointer::open_in(std::make_unique<VanishingStorage>(disk, is_gone));
    ASSERT_TRUE(checkpoint) << checkpoint.error().what();
    StateDict values;
    ASSERT_TRUE(values.add_tensor("w", TensorView::contiguous(weights.data(), DType::kFloat32, {1000})));
    ASSERT_TRUE(checkpoint->load(values));
    if (is_replaced) ASSERT_TRUE(checkpointer::save_into(directory, state, {}));
    is_gone = true;
    EXPECT_EQ(checkpoint->load(values).error().code(), is_replaced ? ErrorCode::kReplaced : ErrorCode::kNotFound);
  }
}

}  // namespace
}  // namespace cairn
