#include "os/real_path.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

namespace cairn::os {
namespace {

namespace fs = std::filesystem;
constexpr std::chrono::minutes kGenerousForPaths{2};

class RealPath : public testing::Test {
 protected:
  RealPath() {
    std::string pattern = (fs::current_path() / "real-path-XXXXXX").string();
    folder_ = fs::canonical(mkdtemp(pattern.data()));
    fs::create_directory(folder_ / "there");
    fs::create_symlink("there", folder_ / "link");
  }
  ~RealPath() override { fs::remove_all(folder_); }

  fs::path folder_;
};

TEST_F(RealPath, FollowsLinksBeforeMissingParts) {
  EXPECT_EQ(real_path(folder_ / "link" / ".." / "link", kGenerousForPaths), folder_ / "there");
  EXPECT_EQ(real_path(folder_ / "link" / "not" / "yet", kGenerousForPaths), folder_ / "there" / "not" / "yet");
}

TEST_F(RealPath, MakesARelativePathAbsolute) {
  EXPECT_EQ(real_path((folder_ / "link").lexically_relative(fs::current_path()), kGenerousForPaths), folder_ / "there");
}

TEST_F(RealPath, KeepsThePathOfALoopOfLinks) {
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_EQ(real_path(folder_ / "loop" / "x", kGenerousForPaths), folder_ / "loop" / "x");
}

}  // namespace
}  // namespace cairn::os
