// ScratchDirectory: a new directory per test below the working directory of the tests, on a disk and not on a tmpfs.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace cairn::storage {

class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string pattern = (std::filesystem::current_path() / "build" / "scratch-XXXXXX").string();
    std::filesystem::create_directories(std::filesystem::path(pattern).parent_path());
    path_ = mkdtemp(pattern.data());
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace cairn::storage
