// DirectoryTrial: tries out what a save needs of a directory: names, locks, direct I/O, rates.
//
// All files lie in a private folder of the directory, which the destructor removes. The file for direct I/O and rates
// has no name: a killed process leaves at most an empty folder and a few bytes. One thread at a time; the rates start
// threads of their own. Each call into the storage is a pending call of the watch.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "os/fd.h"
#include "storage/operation_watch.h"
#include "storage/raw_rates.h"

namespace cairn::checkpointer {

// The text of the system's error if a call fails; nullopt if the call works.
using Failure = std::optional<std::string>;

struct NameTrials {
  Failure rename;          // a file takes the place of another one
  Failure keeping_rename;  // renameat2(2) with RENAME_NOREPLACE
  Failure link;
  Failure sync;  // of a file and of the folder
  Failure lock;
};

struct DirectIo {
  Failure refused;
  bool is_known = false;  // statx(2) states the alignments
  std::uint32_t memory_alignment = 0;
  std::uint32_t offset_alignment = 0;
};

class DirectoryTrial {
 public:
  // The path of a new private folder of `directory`; makes no folder.
  static std::filesystem::path folder_in(const std::filesystem::path& directory);
  // Removes what a trial left in `folder`, and the folder. For trials that were given up.
  static void remove(const std::filesystem::path& folder) noexcept;

  DirectoryTrial(std::filesystem::path folder, std::shared_ptr<storage::OperationWatch> operations)
      : path_(std::move(folder)), operations_(std::move(operations)) {}
  DirectoryTrial(const DirectoryTrial&) = delete;
  DirectoryTrial& operator=(const DirectoryTrial&) = delete;
  ~DirectoryTrial();

  // Makes the folder, and the file without a name. Precedes all trials.
  Failure make_files();
  Result<NameTrials> try_names() const;
  // Writes a page.
  DirectIo try_direct_io() const;

  struct Rates {
    storage::RawTransfer write;  // synced
    storage::RawTransfer read;   // from the device if direct
  };
  // Writes and reads the front of the file, each for `time_max` and up to `bytes`. kCancelled, and the system's errors.
  Result<Rates> measure(std::uint64_t bytes, bool direct, std::chrono::milliseconds time_max,
                        const std::function<bool()>& interrupted) const;

 private:
  Result<os::Fd> create(const char* name) const;
  Failure try_sync(const os::Fd& file) const;
  storage::OperationWatch::Call watched(storage::OperationKind kind, const char* action) const;

  const std::filesystem::path path_;
  const std::shared_ptr<storage::OperationWatch> operations_;
  bool is_made_ = false;
  os::Fd folder_;
  os::Fd file_;
};

}  // namespace cairn::checkpointer
