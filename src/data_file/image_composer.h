// ImageComposer: renders a file image into the file's bytes, block by block, on several threads, in a single pass over
// the tensors.
//
// Thread-safe: every block [begin, end) of the file is composed once, and blocks are *started* in ascending order (the
// caller's block queue keeps the order). The block in which a checksum's bytes begin computes the checksum while
// copying the bytes. Bytes that depend on checksums lie in the file behind the bytes that the checksums cover. A block
// therefore waits only for earlier blocks, and a deadlock is impossible:
//
// 1. Copy the payload bytes of the block, and record the CRC of each 64 KiB chunk that begins in the block.
// 2. Wait until all earlier blocks have done step 1. Render the frames (zip tails hold payload CRCs), and record the
//    frames' CRCs.
// 3. If the trailer reaches into the block: wait until all blocks up to this block have done step 2, then render the
//    trailer.
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
  // `block_bytes` is a multiple of 4096. The image must outlive the composer.
  ImageComposer(const FileImage& image, std::uint64_t block_bytes);

  std::uint64_t block_count() const { return block_count_; }
  std::uint64_t block_begin(std::uint64_t block) const { return block * block_bytes_; }
  // The bytes of the block; the last block ends at the end of the file.
  std::uint64_t block_length(std::uint64_t block) const;

  // `out` has block_length(block) bytes. If `out` is the memory in which the payloads are staged, the payloads are not
  // copied. An exception (out of memory) first abandons the image, as abandon() does.
  void compose(std::uint64_t block, std::span<std::byte> out);

  // Announces that a block will never be composed: releases all waiting threads. The output of every later compose() is
  // worthless.
  void abandon();

  // Checksum of the finished trailer, for the commit record. Valid once every block is composed.
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
  std::vector<std::uint32_t> checksums_;  // a block writes each checksum, and only later blocks read the checksum
  os::OrderedProgress payloads_done_;
  os::OrderedProgress frames_done_;
  std::once_flag trailer_once_;
  std::vector<std::byte> trailer_;
  std::uint32_t trailer_checksum_ = 0;
};

}  // namespace cairn::data_file
