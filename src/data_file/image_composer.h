// ImageComposer: turns a file image into the file's bytes, block by block, on several threads, in one pass over the
// tensors.
//
// Thread-safe: every block [begin, end) of the file is composed once, and blocks are *started* in ascending order (a
// shared counter sees to it). A checksum is taken by the block in which its bytes begin, while they are copied. What
// depends on checksums comes later in the file than the bytes themselves, so a block only ever waits for blocks
// before it, and nothing can lock up:
//
// 1. Copy the payload bytes of the block; note the CRC of each 64 KiB chunk that begins in it.
// 2. Wait until all blocks before it have done step 1. Render the frames (zip tails hold payload CRCs); note their
// CRCs.
// 3. If the trailer reaches into the block: wait until all blocks up to it have done step 2, then render the trailer.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "data_file/file_image.h"
#include "os/ordered_progress.h"

namespace cairn::data_file {

class ImageComposer {
 public:
  // `block_bytes` is a multiple of 4096. The image outlives the composer.
  ImageComposer(const FileImage& image, std::uint64_t block_bytes);

  std::uint64_t block_count() const { return block_count_; }
  std::uint64_t block_begin(std::uint64_t block) const { return block * block_bytes_; }
  // The block's bytes, cut at the end of the file.
  std::uint64_t block_length(std::uint64_t block) const;

  // `out` has block_length(block) bytes. It may be the very memory in which the payloads are staged: then they stay
  // where they are. If it throws (memory ran out), other threads are set free and what they compose is worthless.
  void compose(std::uint64_t block, std::span<std::byte> out);

  // A block will never be composed: nobody shall wait for it. What others compose from now on is worthless.
  void abandon();

  // Of the finished trailer, for the commit record. Valid once every block is composed.
  std::uint32_t trailer_checksum() const { return trailer_checksum_; }

 private:
  struct Window;  // a block's place and bytes
  void compose_in_steps(std::uint64_t block, const Window& window);
  void copy_payloads(const Window& window);
  void copy_payload(const Window& window, std::size_t item);
  void render_frames(const Window& window);
  void render_trailer(const Window& window, std::uint64_t block);
  std::uint32_t payload_crc(std::size_t item) const;

  const FileImage& image_;
  std::uint64_t block_bytes_;
  std::uint64_t block_count_;
  std::vector<std::uint32_t> checksums_;  // each written by one block, read by later ones
  os::OrderedProgress payloads_done_;
  os::OrderedProgress frames_done_;
  std::once_flag trailer_once_;
  std::vector<std::byte> trailer_;
  std::uint32_t trailer_checksum_ = 0;
};

}  // namespace cairn::data_file
