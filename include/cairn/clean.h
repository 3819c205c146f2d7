// clean: removes the dead saves below a root: the files of saves whose processes have died.
#pragma once

#include <cairn/catalog.h>
#include <cairn/error.h>
#include <cairn/result.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace cairn {

struct CleanedFile {
  std::string name;  // relative to the directory of the save
  std::uint64_t bytes = 0;
};

struct CleanedSave {
  std::filesystem::path directory;  // `root`, or a directory in `root`
  SaveId save_id;
  std::vector<CleanedFile> files;
  std::uint64_t bytes = 0;  // of `files`
};

struct CleanReport {
  std::vector<CleanedSave> saves;
  std::uint64_t bytes = 0;  // of all saves
  // Directories that this user may not enter, and saves that only a different user may read, all of which were left;
  // each text names directory and save.
  std::vector<std::string> warnings;
  // Why a dead save, or a file of it, could not be removed. Each error names its directory.
  std::vector<Error> problems;
};

struct CleanOptions {
  bool dry_run = false;                    // changes nothing; the report says what a call without it would remove
  std::function<bool()> interrupted = {};  // called before each directory; true: kCancelled
};

// Removes the dead saves in `root` and in the directories in `root`: saves of checkpoints and of models. A save is dead
// if each of its processes has died, or, on another host, has given no sign of life for five minutes: the rule by which
// a save cleans its own directory. Never removes a file that a checkpoint or a model needs, a file of a living save, a
// committed checkpoint, a directory, or a foreign file outside of the dead save's private folder, which is Cairn's own.
// A save that had committed before it died is completed: the files of the checkpoint that it replaced go. Does not
// follow links in `root`. Safe beside running saves: the commits of a directory with dead saves wait meanwhile.
// kNotFound if `root` is missing, kInvalidArgument if it is no directory.
Result<CleanReport> clean(const std::filesystem::path& root, const CleanOptions& options = {});

}  // namespace cairn
