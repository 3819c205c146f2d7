// ImageWriter: writes file images to storage: composes segments, keeps several requests in flight, and writes each byte
// once. Segments are started in file order.
#pragma once

#include <cairn/options.h>
#include <cairn/result.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data_file/image.h"
#include "os/gate.h"
#include "storage/storage.h"

namespace cairn::data_file {

// The bytes [begin, begin + out.size()) of an absent payload, to be filled in.
struct PayloadPart {
  std::size_t payload;
  std::uint64_t begin;  // a multiple of the size of an element
  std::span<std::byte> out;
  // The bytes lie behind the segment, and are needed only for a checksum: the call for the next segment asks for them
  // again. The remaining parts of all calls have each byte once.
  bool is_ahead = false;
};

struct ImageFile {
  std::string name;  // name of the file to create; must be unused
  const Image* image;
  // Memory that holds the payloads at their places in the file: page-aligned, the file's bytes rounded up to pages. The
  // writer completes the file in this memory and writes the file from here. Empty: the file is composed in small
  // buffers.
  std::span<std::byte> staged = {};
  // Set if the payloads are still being staged. Returns once all bytes before `end` (in the file) are staged, or
  // returns the error that stopped the staging. Never returns an error for bytes already staged. Called from several
  // threads.
  std::function<Result<void>(std::uint64_t end)> await_staged = {};
  // Set if the image has absent payloads. Called once for each segment with absent payloads, from several threads, with
  // the parts in the order of the file.
  std::function<Result<void>(std::span<const PayloadPart> parts)> fill = {};
  // If set: receives the CRC of each payload when the file is finished.
  std::vector<std::uint32_t>* payload_crcs = nullptr;
};

struct WriteOptions {
  Durability durability = Durability::kDurable;
  std::size_t thread_count = 4;  // more for staged files in a storage behind a network
  bool direct_io = true;
  std::function<bool()> interrupted = {};
  std::atomic<std::uint64_t>* bytes_written = nullptr;  // if set: counts the written bytes
  // If set: the writer reads the images' sources only while holding a pass of this gate. Once the gate is closed, the
  // files fail with kCancelled, and the caller may free the sources' memory even before write_images() returns.
  os::Gate* sources = nullptr;
};

// Creates and writes every file, and syncs every file if durable. Returns the trailer checksums in the order of
// `files`. Memory: a segment of 4 MiB for each thread, of 16 MiB if the storage prefers it. On failure some files may
// exist, unfinished: the caller removes the files.
Result<std::vector<std::uint32_t>> write_images(storage::Storage& storage, const std::vector<ImageFile>& files,
                                                const WriteOptions& options);

}  // namespace cairn::data_file
