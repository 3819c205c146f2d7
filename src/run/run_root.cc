#include "run/run_root.h"

#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "checkpoint/checkpoint_directories.h"
#include "storage/open_directory.h"

namespace cairn::run {
namespace {

namespace fs = std::filesystem;

class PosixRunRoot final : public RunRoot {
 public:
  explicit PosixRunRoot(fs::path root) : root_(std::move(root)) {}

  Result<std::vector<fs::path>> directories() const override {
    CAIRN_TRY_ASSIGN(std::optional<checkpointer::CheckpointDirectories> found,
                     checkpointer::checkpoint_directories(root_));
    if (!found) return Error(ErrorCode::kNotFound, "no such directory").file(root_.string());
    std::erase_if(*found, [this](const fs::path& directory) {
      std::error_code ignored;
      return directory == root_ || fs::is_symlink(fs::symlink_status(directory, ignored));
    });
    return *std::move(found);
  }

  Result<std::unique_ptr<storage::Storage>> open(const fs::path& directory) const override {
    return storage::open_directory(directory);
  }

  bool remove_if_empty(const fs::path& directory) override { return run::remove_if_empty(directory); }

 private:
  fs::path root_;
};

}  // namespace

bool remove_if_empty(const fs::path& directory) { return ::rmdir(directory.c_str()) == 0 || errno == ENOENT; }

std::unique_ptr<RunRoot> run_root(const fs::path& root) { return std::make_unique<PosixRunRoot>(root); }

}  // namespace cairn::run
