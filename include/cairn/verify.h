// verify: reads a whole checkpoint, and checks every byte against its checksum and every chunk against its tensor.
#pragma once

#include <cairn/catalog.h>
#include <cairn/error.h>
#include <cairn/result.h>
#include <cairn/save_deadlines.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace cairn {

struct VerifyReport {
  std::vector<Error> problems;        // each has a file, and key and offset if known; empty: no damage
  std::uint64_t files = 0;            // data files read
  std::uint64_t bytes_checked = 0;    // bytes with a checksum
  std::uint64_t bytes_unchecked = 0;  // bytes without a checksum (gaps, records without CRC, transformed items)
  // Keys of items that were written through stream transforms (compression), with the names of the transforms. The
  // bytes of these items count as unchecked: verify() checks only that the items lie within their files.
  std::vector<std::pair<std::string, std::string>> unchecked_keys;
  std::uint64_t tensors = 0;
  std::uint64_t values = 0;
  // The bytes of a safetensors file without Cairn's checksums, and of a legacy torch.save file, are unchecked.
  CheckpointFormat format = CheckpointFormat::kDcp;
  bool has_commit_record =
      false;  // true: Cairn wrote the checkpoint; false: only the zip checksums of stock torch were checked
  // What the files leave open: for example that the number of shards that torch wrote without an index is unknown.
  std::vector<std::string> warnings;
};

struct VerifyProgress {
  std::uint64_t bytes_read = 0;   // of the data files
  std::uint64_t bytes_total = 0;  // of the data files; 0 until the data files are open
};

struct VerifyOptions {
  std::size_t thread_count = 4;
  bool follow_links = false;  // allows symbolic links as data files
  // kUnavailable if a call that opens or reads a file takes longer than `publish`.
  SaveDeadlines deadlines = {};
  // Both functions are called every few milliseconds, on the calling thread. After `interrupted` has returned true, the
  // result is kCancelled within a second: a call into the storage that hangs is left alone.
  std::function<bool()> interrupted = {};
  std::function<void(const VerifyProgress&)> progress = {};
};

// Fails only if `directory` has no checkpoint (kNotFound), if the metadata can't be read at all, or if `interrupted`
// has returned true.
Result<VerifyReport> verify(const std::filesystem::path& directory, const VerifyOptions& options = {});

}  // namespace cairn
