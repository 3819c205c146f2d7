// ImageWriter: writes file images to storage: composed in blocks, several requests in flight, each byte once and in
// order.
#pragma once

#include <cairn/durability.h>
#include <cairn/result.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data_file/file_image.h"
#include "os/gate.h"
#include "storage/storage.h"

namespace cairn::data_file {

struct ImageFile {
  std::string name;  // under which it is created: must be free
  const FileImage* image;
  // Where the payloads lie already as they will lie in the file: page-aligned, the file's bytes rounded up to pages.
  // The file is then completed and written from there. Empty: composed in small buffers.
  std::span<std::byte> staged = {};
  // While they are still being staged: returns once all before `end` (in the file) are there, or why they never will
  // be; never an error for what is there. Called from several threads.
  std::function<Result<void>(std::uint64_t end)> await_staged = {};
};

struct WriteOptions {
  Durability durability = Durability::kDurable;
  std::size_t thread_count = 4;
  bool direct_io = true;
  std::function<bool()> interrupted = {};
  std::atomic<std::uint64_t>* bytes_written = nullptr;  // if given, it is counted up while files are written
  // If given: what the images view is read only inside of it. Once it is closed the files fail with kCancelled, and the
  // memory of the images' sources may go, whether or not the call has returned.
  os::Gate* sources = nullptr;
};

// Creates, writes and (if durable) syncs every file. Returns the checksum of each file's trailer, in order. Memory: one
// block of 4 MiB for each thread. On failure some files may exist, unfinished: the caller removes them.
Result<std::vector<std::uint32_t>> write_images(storage::Storage& storage, const std::vector<ImageFile>& files,
                                                const WriteOptions& options);

}  // namespace cairn::data_file
