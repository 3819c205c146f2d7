// RunRoot: the directory below which a run has its checkpoints, each in a directory of its own.
#pragma once

#include <cairn/result.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "storage/storage.h"

namespace cairn::run {

class RunRoot {
 public:
  virtual ~RunRoot() = default;
  // The directories in the root that may hold checkpoints, in no order: without links, and without the private folders
  // of saves. kNotFound if the root is missing.
  virtual Result<std::vector<std::filesystem::path>> directories() const = 0;
  virtual Result<std::unique_ptr<storage::Storage>> open(const std::filesystem::path& directory) const = 0;
  // Removes the directory if it is empty. Returns whether the directory is gone.
  virtual bool remove_if_empty(const std::filesystem::path& directory) = 0;
};

// Removes a directory of a file system if it is empty. Returns whether the directory is gone.
bool remove_if_empty(const std::filesystem::path& directory);

// A root on a file system.
std::unique_ptr<RunRoot> run_root(const std::filesystem::path& root);

}  // namespace cairn::run
