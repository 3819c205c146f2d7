// verify: reads every byte of a checkpoint and holds it against its checksum, and every chunk against its tensor.
#pragma once

#include <cairn/error.h>
#include <cairn/result.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace cairn {

struct VerifyReport {
  std::vector<Error> problems;        // each names file, and key and offset where it has them; empty: all is well
  std::uint64_t files = 0;            // data files read
  std::uint64_t bytes_checked = 0;    // bytes that a checksum vouches for
  std::uint64_t bytes_unchecked = 0;  // bytes without a checksum (gaps, records that carry none, transformed items)
  // Keys whose bytes can't be checked, because they went through stream transforms (compression), and the names of
  // these. Their bytes count as unchecked; only that the file holds them is checked.
  std::vector<std::pair<std::string, std::string>> unchecked_keys;
  std::uint64_t tensors = 0;
  std::uint64_t values = 0;
  bool has_commit_record = false;  // Cairn wrote it; otherwise only the zip checksums of stock torch vouch for it
};

struct VerifyProgress {
  std::uint64_t bytes_read = 0;   // of the data files
  std::uint64_t bytes_total = 0;  // to be read; 0 until the data files are open
};

struct VerifyOptions {
  std::size_t thread_count = 4;
  bool follow_links = false;  // allows data files that are symbolic links
  // Both are called every few milliseconds, on the calling thread. Once `interrupted` says true the result is
  // kCancelled, within a second: a call into the storage that has not returned by then is left alone.
  std::function<bool()> interrupted = {};
  std::function<void(const VerifyProgress&)> progress = {};
};

// Fails only if there is no checkpoint to look at (kNotFound) or its metadata can't be read at all, or if it was
// interrupted.
Result<VerifyReport> verify(const std::filesystem::path& directory, const VerifyOptions& options = {});

}  // namespace cairn
