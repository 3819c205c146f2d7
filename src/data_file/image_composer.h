// ImageComposer: renders a file image into the file's bytes, segment by segment, on several threads, in a single pass
// over the tensors.
//
// Thread-safe: every segment [begin, end) of the file is composed once, and segments are *started* in ascending order
// (the caller's segment queue keeps the order). The segment in which a checksum's bytes begin computes the checksum
// while copying the bytes. Bytes that depend on checksums lie in the file behind the bytes that the checksums cover. A
// segment therefore waits only for earlier segments, and a deadlock is impossible:
//
// 1. Copy the payload bytes of the segment, and record the CRC of each 64 KiB block that begins in the segment.
// 2. If a frame reaches into the segment: wait until all earlier segments have done step 1, render the frames (zip
//    tails hold payload CRCs), and record the frames' CRCs. A segment inside a payload has no frame, and does not wait.
// 3. If the trailer reaches into the segment: wait until all segments up to this segment have done step 2, then render
//    the trailer.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "data_file/image.h"
#include "os/ordered_progress.h"

namespace cairn::data_file {

class ImageComposer {
 public:
  // `segment_bytes` is a multiple of 4096. The image must outlive the composer.
  ImageComposer(const Image& image, std::uint64_t segment_bytes);

  std::uint64_t segment_count() const { return segment_count_; }
  std::uint64_t segment_begin(std::uint64_t segment) const { return segment * segment_bytes_; }
  // The bytes of the segment; the last segment ends at the end of the file.
  std::uint64_t segment_length(std::uint64_t segment) const;
  // The segment's bytes, and the rest of the checksum block that the segment's end cuts: the absent payloads of these
  // bytes are filled in before the segment is composed.
  std::uint64_t filled_length(std::uint64_t segment) const;

  // `out` has segment_length(segment) bytes. If `out` is the memory in which the payloads are staged, the payloads are
  // not copied. If the image has absent payloads, filled_length(segment) bytes from out.data() on hold these payloads.
  // An exception (out of memory) first abandons the image, as abandon() does.
  void compose(std::uint64_t segment, std::span<std::byte> out);

  // Announces that a segment will never be composed: releases all waiting threads. The output of every later compose()
  // is worthless.
  void abandon();

  // Valid once every segment is composed: the checksum of the finished trailer, for the commit record, and the CRC of a
  // payload.
  std::uint32_t trailer_checksum() const { return trailer_checksum_; }
  std::uint32_t payload_crc(std::size_t payload) const;
  // Renders the image's revised bytes. Once every segment is composed.
  void revise(std::span<std::byte> out) const { image_.revise(checksums_, out); }

 private:
  struct Window;  // a segment's place and bytes
  void compose_in_steps(std::uint64_t segment, const Window& window);
  void copy_payloads(const Window& window);
  void copy_payload(const Window& window, std::size_t payload);
  // False after abandon(): the frames of the segment are not rendered.
  bool render_frames(const Window& window, std::uint64_t segment);
  // The whole frame: ready, or rendered into `out` if `out` has the frame's length, or into `buffer`.
  std::span<const std::byte> whole_frame(std::size_t frame, std::span<std::byte> out,
                                         std::vector<std::byte>& buffer) const;
  void render_trailer(const Window& window, std::uint64_t segment);

  const Image& image_;
  std::uint64_t segment_bytes_;
  std::uint64_t segment_count_;
  std::vector<std::uint32_t> checksums_;  // a segment writes each checksum, and only later segments read the checksum
  os::OrderedProgress payloads_done_;
  os::OrderedProgress frames_done_;
  std::once_flag trailer_once_;
  std::vector<std::byte> trailer_;
  std::uint32_t trailer_checksum_ = 0;
};

}  // namespace cairn::data_file
