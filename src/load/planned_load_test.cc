// Loads in two steps: the order of the entries, failures of single entries, cancellation; and the names of a load.
#include <cairn/cairn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/open_calls.h"
#include "save/save_calls.h"
#include "storage/testing/model_storage.h"
#include "storage/testing/view_storage.h"

namespace cairn {
namespace {

constexpr std::int64_t kElements = 1 << 20;
constexpr std::chrono::seconds kLimit{120};

// Called before each read of a data file: offset and bytes.
using BeforeRead = std::function<Result<void>(std::uint64_t offset, std::span<std::byte> target)>;

class WatchedFile final : public storage::ReadableFile {
 public:
  WatchedFile(std::unique_ptr<ReadableFile> file, const BeforeRead& before) : file_(std::move(file)), before_(before) {}
  std::uint64_t size() const override { return file_->size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) const override {
    CAIRN_TRY(file_->read_at(offset, target));
    return before_ ? before_(offset, target) : Result<void>();
  }
  std::optional<DirectAlignment> direct_alignment() const override { return std::nullopt; }
  Result<void> read_direct_at(std::uint64_t offset, std::span<std::byte> target) const override {
    return read_at(offset, target);
  }
  bool is_cached(std::uint64_t, std::uint64_t) const override { return true; }

 private:
  std::unique_ptr<ReadableFile> file_;
  const BeforeRead& before_;
};

class WatchedStorage final : public storage::ViewStorage {
 public:
  WatchedStorage(storage::Storage& storage, const BeforeRead& before) : ViewStorage(storage), before_(before) {}
  Result<std::unique_ptr<storage::ReadableFile>> open(std::string_view name, bool follow_links) const override {
    CAIRN_TRY_ASSIGN(std::unique_ptr<storage::ReadableFile> file, ViewStorage::open(name, follow_links));
    if (!name.ends_with(".distcp")) return file;
    return std::unique_ptr<storage::ReadableFile>(std::make_unique<WatchedFile>(std::move(file), before_));
  }

 private:
  const BeforeRead& before_;
};

// A state of the tensors "a", "b" and "c", and the value "step".
class State {
 public:
  explicit State(float value) {
    for (const char* name : {"a", "b", "c"}) {
      auto& memory = memory_[name];
      memory.assign(kElements, value);
      EXPECT_TRUE(dict_.add_tensor(name, TensorView::contiguous(memory.data(), DType::kFloat32, {kElements})));
    }
    EXPECT_TRUE(dict_.add_value("step", Value(static_cast<int>(value))));
  }
  StateDict& dict() { return dict_; }
  const std::vector<float>& of(const std::string& name) const { return memory_.at(name); }

 private:
  std::map<std::string, std::vector<float>> memory_;
  StateDict dict_;
};

class PlannedLoads : public testing::Test {
 protected:
  PlannedLoads() {
    EXPECT_TRUE(checkpointer::save_into({"planned", storage::ModelStorage::opening(disk_)}, State(7).dict(), {}));
    auto opened = checkpointer::open_in(std::make_unique<WatchedStorage>(disk_, before_));
    EXPECT_TRUE(opened) << opened.error().what();
    checkpoint_.emplace(*std::move(opened));
  }

  // The bytes of the tensor in the only data file.
  bool is_of(const std::string& name, std::uint64_t offset, std::uint64_t length) const {
    const KeyEntry entry = *checkpoint_->entry(name).value();
    const ItemLocation& place = std::get<CatalogTensor>(entry).locations[0];
    return offset < place.offset + place.length && offset + length > place.offset + place.length / 2;
  }

  storage::ModelStorage disk_;
  BeforeRead before_;
  std::optional<Checkpoint> checkpoint_;
};

TEST_F(PlannedLoads, AnEntryEndsBeforeLaterReads) {
  for (const std::vector<std::size_t>& order : std::vector<std::vector<std::size_t>>{{0, 1, 2}, {2, 0, 1}, {1}}) {
    SCOPED_TRACE(testing::PrintToString(order));
    State state(0);
    before_ = {};
    auto plan = plan_load(*checkpoint_, state.dict(), {.thread_count = 2});
    ASSERT_TRUE(plan) << plan.error().what();
    EXPECT_EQ(state.of("a")[0], 0.0F);
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::size_t> filled;
    const std::string last = order.back() == 2 ? "c" : order.back() == 1 && order.size() > 1 ? "b" : "c";
    const std::size_t first = order.front();
    before_ = [&](std::uint64_t offset, std::span<std::byte> target) -> Result<void> {
      if (!is_of(last, offset, target.size())) return {};
      std::unique_lock lock(mutex);
      const auto is_filled = [&] { return std::find(filled.begin(), filled.end(), first) != filled.end(); };
      if (changed.wait_for(lock, kLimit, is_filled)) return {};
      return Error(ErrorCode::kInternal, "the first entry is not ready");
    };
    const auto report = plan->run(
        [&](std::size_t entry, const Result<void>& outcome) {
          EXPECT_TRUE(outcome) << outcome.error().what();
          const std::lock_guard lock(mutex);
          filled.push_back(entry);
          changed.notify_all();
        },
        order);
    ASSERT_TRUE(report) << report.error().what();
    EXPECT_EQ(filled.size(), 4U);
    EXPECT_EQ(filled.front(), 3U);  // the value needs no read
    for (const char* name : {"a", "b", "c"}) EXPECT_EQ(state.of(name), std::vector<float>(kElements, 7.0F));
    EXPECT_EQ(*state.dict().value("step"), Value(7));
  }
}

TEST_F(PlannedLoads, AFailureIsThatOfItsEntryAlone) {
  State state(0);
  auto plan = plan_load(*checkpoint_, state.dict(), {.thread_count = 1});
  ASSERT_TRUE(plan) << plan.error().what();
  before_ = [&](std::uint64_t offset, std::span<std::byte> target) -> Result<void> {
    if (is_of("a", offset, target.size())) target.back() ^= std::byte{1};
    if (is_of("b", offset, target.size())) return Error(ErrorCode::kUnavailable, "no read");
    return {};
  };
  std::map<std::size_t, std::optional<Error>> outcomes;
  const auto report = plan->run([&](std::size_t entry, const Result<void>& outcome) {
    EXPECT_FALSE(outcomes.contains(entry));
    outcomes[entry] = outcome ? std::nullopt : std::optional<Error>(outcome.error());
  });
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kCorrupt) << report.error().what();
  ASSERT_EQ(outcomes.size(), 4U);
  ASSERT_TRUE(outcomes[0]);
  EXPECT_EQ(outcomes[0]->code(), ErrorCode::kCorrupt);
  EXPECT_EQ(outcomes[0]->key(), "a");
  ASSERT_TRUE(outcomes[1]);
  EXPECT_EQ(outcomes[1]->code(), ErrorCode::kUnavailable);
  EXPECT_FALSE(outcomes[2]);
  EXPECT_EQ(state.of("c"), std::vector<float>(kElements, 7.0F));
}

TEST_F(PlannedLoads, CancelledLoadEndsEachEntryOnce) {
  State state(0);
  auto plan = plan_load(*checkpoint_, state.dict(), {.thread_count = 1});
  ASSERT_TRUE(plan) << plan.error().what();
  std::map<std::size_t, ErrorCode> failures;
  std::size_t told = 0;
  before_ = [&](std::uint64_t offset, std::span<std::byte> target) -> Result<void> {
    if (is_of("b", offset, target.size())) plan->cancel();
    return {};
  };
  const auto report = plan->run([&](std::size_t entry, const Result<void>& outcome) {
    ++told;
    if (!outcome) failures[entry] = outcome.error().code();
  });
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(told, 4U);
  ASSERT_TRUE(failures.contains(2));
  EXPECT_EQ(failures[2], ErrorCode::kCancelled);
}

TEST_F(PlannedLoads, MissingEntriesAreNamedAndStay) {
  State state(0);
  float other = 3;
  ASSERT_TRUE(state.dict().add_tensor("other", TensorView::contiguous(&other, DType::kFloat32, {1})));
  EXPECT_EQ(plan_load(*checkpoint_, state.dict()).error().code(), ErrorCode::kMissingKey);
  auto plan = plan_load(*checkpoint_, state.dict(), {.allow_partial = true});
  ASSERT_TRUE(plan) << plan.error().what();
  EXPECT_EQ(plan->missing(), std::vector<std::string>{"other"});
  std::mutex mutex;
  std::vector<std::size_t> filled;
  ASSERT_TRUE(plan->run([&](std::size_t entry, const Result<void>&) {
    const std::lock_guard lock(mutex);
    filled.push_back(entry);
  }));
  std::sort(filled.begin(), filled.end());
  EXPECT_EQ(filled, (std::vector<std::size_t>{0, 1, 2, 3}));
  EXPECT_EQ(other, 3.0F);
}

TEST_F(PlannedLoads, RenamesMapKeysToTheState) {
  std::vector<float> memory(kElements);
  StateDict state;
  ASSERT_TRUE(state.add_tensor("net.a", TensorView::contiguous(memory.data(), DType::kFloat32, {kElements})));
  ASSERT_TRUE(state.add_value("count", Value(0)));
  ASSERT_TRUE(checkpoint_->load(state, {.renames = {{"step", "count"}, {"a", "net.a"}}}));
  EXPECT_EQ(memory, std::vector<float>(kElements, 7.0F));
  EXPECT_EQ(*state.value("count"), Value(7));
  const auto code = [&](std::vector<KeyRename> renames) {
    return checkpoint_->load(state, {.renames = std::move(renames)}).error().code();
  };
  EXPECT_EQ(code({{"a", "net.a"}}), ErrorCode::kMissingKey);                                 // no "count"
  EXPECT_EQ(code({{"step", "count"}, {"a", "net.a"}, {"x", "y"}}), ErrorCode::kMissingKey);  // "x" is no key
  EXPECT_EQ(code({{"step", "count"}, {"a", "net.a"}, {"b", "c"}}), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn
