// Reads of a source that hang: each pass over a checkpoint fails within the deadline of a read, and leaves no target.
#include <cairn/cairn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <numeric>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "storage/testing/hanging_reads.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using storage::HangingReads;

constexpr SaveDeadlines kShort{std::chrono::minutes(2), std::chrono::minutes(2), std::chrono::milliseconds(500)};

class HangingSource : public testing::Test {
 protected:
  HangingSource() {
    std::vector<float> weights(1000, 2);
    StateDict state;
    EXPECT_TRUE(state.add_tensor("w", TensorView::contiguous(weights.data(), DType::kFloat32, {1000})));
    EXPECT_TRUE(state.add_value("v", 7));
    EXPECT_TRUE(save(dcp(), state));
    EXPECT_TRUE(convert(dcp(), torch_file(), {.to = CheckpointFormat::kTorchSave}));
    EXPECT_TRUE(convert(dcp(), model(), {.to = CheckpointFormat::kSafetensors, .keys = {"w"}}));
  }

  fs::path dcp() const { return root_ / "dcp"; }
  fs::path torch_file() const { return root_ / "file.pt"; }
  fs::path model() const { return root_ / "model.safetensors"; }

  // All names below the root, hidden ones included.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    std::error_code ignored;  // a hanging thread may remove a directory meanwhile
    for (fs::recursive_directory_iterator it(root_, ignored); it != fs::end(it); it.increment(ignored)) {
      names.push_back(it->path().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  // Calls `read` while the reads of files whose names end with `suffix` hang. `read` must fail within its deadline.
  // Then the reads go on, and no new name stays.
  void expect_stall(const std::string& suffix, const std::function<Error()>& read) const {
    const std::vector<std::string> before = names();
    {
      const HangingReads hanging(suffix);
      const Error error = read();
      EXPECT_EQ(error.code(), ErrorCode::kUnavailable) << error.what();
      EXPECT_NE(std::string(error.what()).find("the storage hangs: reading '"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(suffix + "'"), std::string::npos) << error.what();
    }
    while (names() != before) std::this_thread::yield();  // the hanging thread withdraws its files
  }

  storage::ScratchDirectory scratch_;
  fs::path root_ = scratch_.path();
};

TEST_F(HangingSource, FailsAConversion) {
  for (const auto to : {CheckpointFormat::kDcp, CheckpointFormat::kTorchSave, CheckpointFormat::kSafetensors}) {
    const std::string suffix = to == CheckpointFormat::kDcp         ? ""
                               : to == CheckpointFormat::kTorchSave ? ".pt"
                                                                    : ".safetensors";
    const fs::path target = root_ / ("target" + suffix);
    const ConvertOptions options{.to = to, .keys = {"w"}, .deadlines = kShort};
    const auto from = [&](const fs::path& source) {
      return [&target, &options, source] { return convert(source, target, options).error(); };
    };
    expect_stall("__0_0.distcp", from(dcp()));
    if (to != CheckpointFormat::kDcp) continue;
    expect_stall(".metadata", from(dcp()));
    expect_stall("file.pt", from(torch_file()));
    expect_stall("model.safetensors", from(model()));
  }
}

TEST_F(HangingSource, FailsAComparison) {
  const DiffOptions options{.deadlines = kShort};
  expect_stall("__0_0.distcp", [&] { return diff(dcp(), torch_file(), options).error(); });
  expect_stall("file.pt", [&] { return diff(dcp(), torch_file(), options).error(); });
}

TEST_F(HangingSource, FailsAVerification) {
  const VerifyOptions options{.deadlines = kShort};
  expect_stall("__0_0.distcp", [&] { return verify(dcp(), options).error(); });
}

TEST_F(HangingSource, FailsKeyReadsAndExports) {
  const TensorPassOptions options{.deadlines = kShort};
  expect_stall("__0_0.distcp", [&] { return read_key(dcp(), "w", options).error(); });
  expect_stall("__0_0.distcp", [&] { return read_key(dcp(), "v", options).error(); });
  expect_stall("__0_0.distcp", [&] { return export_npy(dcp(), "w", root_ / "w.npy", options).error(); });
}

TEST_F(HangingSource, InterruptionDoesNotWait) {
  const std::vector<std::string> before = names();
  {
    const HangingReads hanging("__0_0.distcp");
    const ConvertOptions options{.to = CheckpointFormat::kTorchSave, .interrupted = [] { return true; }};
    EXPECT_EQ(convert(dcp(), root_ / "target.pt", options).error().code(), ErrorCode::kCancelled);
    EXPECT_FALSE(fs::exists(root_ / "target.pt"));
  }
  while (names() != before) std::this_thread::yield();
}

}  // namespace
}  // namespace cairn
