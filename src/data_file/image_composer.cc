#include "data_file/image_composer.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

#include "core/checked.h"
#include "core/checksum.h"

namespace cairn::data_file {

struct ImageComposer::Window {
  std::uint64_t begin;  // of the segment, in the file
  std::span<std::byte> out;

  std::uint64_t end() const { return begin + out.size(); }
  bool holds(std::uint64_t offset) const { return offset >= begin && offset < end(); }
};

ImageComposer::ImageComposer(const Image& image, std::uint64_t segment_bytes)
    : image_(image),
      segment_bytes_(segment_bytes),
      segment_count_((image.file_bytes() + segment_bytes - 1) / segment_bytes),
      checksums_(image.slots().count(), 0),
      payloads_done_(segment_count_),
      frames_done_(segment_count_),
      trailer_(image.trailer_bytes()) {}

std::uint64_t ImageComposer::segment_length(std::uint64_t segment) const {
  return std::min(segment_bytes_, image_.file_bytes() - segment_begin(segment));
}

void ImageComposer::compose(std::uint64_t segment, std::span<std::byte> out) {
  try {
    compose_in_steps(segment, {segment_begin(segment), out});
  } catch (...) {
    abandon();
    throw;
  }
}

void ImageComposer::abandon() {
  payloads_done_.abandon();
  frames_done_.abandon();
}

void ImageComposer::compose_in_steps(std::uint64_t segment, const Window& window) {
  copy_payloads(window);  // (1)
  payloads_done_.mark(segment);
  if (!render_frames(window, segment)) return;  // (2)
  frames_done_.mark(segment);
  if (window.end() > image_.trailer_offset()) render_trailer(window, segment);  // (3)
}

std::uint64_t ImageComposer::filled_length(std::uint64_t segment) const {
  const std::uint64_t length = segment_length(segment);
  const std::uint64_t end = segment_begin(segment) + length;
  const std::size_t payload = image_.first_payload_beyond(end);
  if (payload == image_.payload_count() || image_.payload_begin(payload) >= end) return length;
  const std::uint64_t in_payload = end - image_.payload_begin(payload);
  const std::uint64_t block_end = std::min(align_up(in_payload, kChecksumBlockBytes), image_.payload_length(payload));
  return length + block_end - in_payload;
}

void ImageComposer::copy_payloads(const Window& window) {
  for (std::size_t payload = image_.first_payload_beyond(window.begin); payload < image_.payload_count(); ++payload) {
    if (image_.payload_begin(payload) >= window.end()) return;
    copy_payload(window, payload);
  }
}

void ImageComposer::copy_payload(const Window& window, std::size_t payload) {
  const std::uint64_t payload_begin = image_.payload_begin(payload);
  const std::uint64_t payload_length = image_.payload_length(payload);
  // The part of the payload that lies in the segment, in bytes from the payload's begin.
  const std::uint64_t from = std::max(window.begin, payload_begin) - payload_begin;
  const std::uint64_t to = std::min(window.end(), payload_begin + payload_length) - payload_begin;
  const std::uint64_t first_slot = image_.slots().first_block(payload);
  const bool is_filled = image_.is_absent(payload);
  std::array<std::byte, kChecksumBlockBytes> scratch;

  for (std::uint64_t block = from / kChecksumBlockBytes; block * kChecksumBlockBytes < to; ++block) {
    const std::uint64_t block_begin = block * kChecksumBlockBytes;
    const std::uint64_t block_end = std::min(block_begin + kChecksumBlockBytes, payload_length);
    const std::uint64_t begin = std::max(from, block_begin);
    const std::uint64_t end = std::min(to, block_end);
    const std::span<std::byte> out = window.out.subspan(payload_begin + begin - window.begin, end - begin);
    std::uint32_t& checksum = checksums_[first_slot + block];
    const bool begins_here = begin == block_begin;
    if (is_filled) {
      if (begins_here) checksum = crc32(std::span<const std::byte>(out.data(), block_end - begin));
      continue;
    }
    if (const auto source = image_.view_payload(payload, begin, block_end - begin)) {
      const bool in_place = source->data() == out.data();
      if (begins_here && in_place) {
        checksum = crc32(*source);
      } else if (begins_here) {
        checksum = copy_with_crc32(out, source->first(out.size()));
        checksum = crc32(source->subspan(out.size()), checksum);  // the part that the next segment copies
      } else if (!in_place) {
        std::memcpy(out.data(), source->data(), out.size());
      }
      continue;
    }
    image_.read_payload(payload, begin, out);
    if (!begins_here) continue;
    checksum = crc32(out);
    if (end == block_end) continue;
    const std::span<std::byte> rest = std::span(scratch).first(block_end - end);
    image_.read_payload(payload, end, rest);
    checksum = crc32(rest, checksum);
  }
}

std::uint32_t ImageComposer::payload_crc(std::size_t payload) const {
  const manifest::ChecksumSlots& slots = image_.slots();
  const std::span<const std::uint32_t> blocks =
      std::span(checksums_).subspan(slots.first_block(payload), slots.block_count(payload));
  return combine_blocks(blocks, image_.payload_length(payload));
}

std::span<const std::byte> ImageComposer::whole_frame(std::size_t frame, std::span<std::byte> out,
                                                      std::vector<std::byte>& buffer) const {
  const std::uint64_t length = image_.frame_end(frame) - image_.frame_begin(frame);
  if (const std::optional<std::string_view> ready = image_.ready_frame(frame)) {
    assert(ready->size() == length);
    return std::as_bytes(std::span(*ready));
  }
  if (out.size() != length) {
    buffer.resize(length);
    out = buffer;
  }
  image_.render_frame(frame, frame == 0 ? 0 : payload_crc(frame - 1), out);
  return out;
}

bool ImageComposer::render_frames(const Window& window, std::uint64_t segment) {
  std::vector<std::byte> frame_bytes;
  bool may_render = false;
  for (std::size_t frame = image_.first_payload_beyond(window.begin); frame <= image_.payload_count(); ++frame) {
    const std::uint64_t begin = image_.frame_begin(frame);
    const std::uint64_t end = image_.frame_end(frame);
    if (begin >= window.end()) break;
    if (begin == end || end <= window.begin) continue;
    // After abandon() the checksums of earlier segments may still be changing, and nothing is rendered.
    if (!may_render && !payloads_done_.wait_for_first(segment)) return false;
    may_render = true;
    const std::uint64_t from = std::max(begin, window.begin);
    const std::uint64_t to = std::min(end, window.end());
    std::byte* const out = window.out.data() + (from - window.begin);
    const std::span<const std::byte> bytes = whole_frame(frame, {out, to - from}, frame_bytes);
    if (window.holds(begin)) checksums_[image_.slots().frame(frame)] = crc32(bytes);
    if (bytes.data() != out) std::memcpy(out, bytes.data() + (from - begin), to - from);
  }
  return true;
}

void ImageComposer::render_trailer(const Window& window, std::uint64_t segment) {
  if (!frames_done_.wait_for_first(segment + 1)) return;
  std::call_once(trailer_once_, [this] { trailer_checksum_ = image_.render_trailer(checksums_, trailer_); });
  const std::uint64_t begin = std::max(window.begin, image_.trailer_offset());
  std::memcpy(window.out.data() + (begin - window.begin), trailer_.data() + (begin - image_.trailer_offset()),
              window.end() - begin);
}

}  // namespace cairn::data_file
