#include "data_file/image_composer.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

#include "core/checksum.h"

namespace cairn::data_file {

struct ImageComposer::Window {
  std::uint64_t begin;  // of the block, in the file
  std::span<std::byte> out;

  std::uint64_t end() const { return begin + out.size(); }
  bool holds(std::uint64_t offset) const { return offset >= begin && offset < end(); }
};

ImageComposer::ImageComposer(const FileImage& image, std::uint64_t block_bytes)
    : image_(image),
      block_bytes_(block_bytes),
      block_count_((image.file_bytes() + block_bytes - 1) / block_bytes),
      checksums_(image.trailer().checksum_count(), 0),
      payloads_done_(block_count_),
      frames_done_(block_count_),
      trailer_(image.trailer().trailer_bytes()) {}

std::uint64_t ImageComposer::block_length(std::uint64_t block) const {
  return std::min(block_bytes_, image_.file_bytes() - block_begin(block));
}

void ImageComposer::compose(std::uint64_t block, std::span<std::byte> out) {
  try {
    compose_in_steps(block, {block_begin(block), out});
  } catch (...) {
    abandon();
    throw;
  }
}

void ImageComposer::abandon() {
  payloads_done_.abandon();
  frames_done_.abandon();
}

void ImageComposer::compose_in_steps(std::uint64_t block, const Window& window) {
  copy_payloads(window);  // (1)
  payloads_done_.mark(block);
  payloads_done_.wait_for_first(block);
  render_frames(window);  // (2)
  frames_done_.mark(block);
  if (window.end() > image_.trailer().trailer_offset()) render_trailer(window, block);  // (3)
}

void ImageComposer::copy_payloads(const Window& window) {
  for (std::size_t item = image_.first_item_beyond(window.begin); item < image_.item_count(); ++item) {
    if (image_.extent(item).payload_offset >= window.end()) return;
    copy_payload(window, item);
  }
}

void ImageComposer::copy_payload(const Window& window, std::size_t item) {
  const manifest::ItemExtent& extent = image_.extent(item);
  const std::uint64_t payload_end = extent.payload_offset + extent.payload_length;
  // The part of the payload that lies in the block, in bytes from the payload's begin.
  const std::uint64_t from = std::max(window.begin, extent.payload_offset) - extent.payload_offset;
  const std::uint64_t to = std::min(window.end(), payload_end) - extent.payload_offset;
  const std::uint64_t first_slot = image_.trailer().slots().first_chunk(item);
  std::array<std::byte, kChecksumChunkBytes> scratch;

  for (std::uint64_t chunk = from / kChecksumChunkBytes; chunk * kChecksumChunkBytes < to; ++chunk) {
    const std::uint64_t chunk_begin = chunk * kChecksumChunkBytes;
    const std::uint64_t chunk_end = std::min(chunk_begin + kChecksumChunkBytes, extent.payload_length);
    const std::uint64_t begin = std::max(from, chunk_begin);
    const std::uint64_t end = std::min(to, chunk_end);
    const std::span<std::byte> out = window.out.subspan(extent.payload_offset + begin - window.begin, end - begin);
    std::uint32_t& checksum = checksums_[first_slot + chunk];
    const bool begins_here = begin == chunk_begin;
    if (const auto source = image_.view_payload(item, begin, chunk_end - begin)) {
      const bool in_place = source->data() == out.data();
      if (begins_here && in_place) {
        checksum = crc32(*source);
      } else if (begins_here) {
        checksum = copy_with_crc32(out, source->first(out.size()));
        checksum = crc32(source->subspan(out.size()), checksum);  // the part that the next block copies
      } else if (!in_place) {
        std::memcpy(out.data(), source->data(), out.size());
      }
      continue;
    }
    image_.read_payload(item, begin, out);
    if (!begins_here) continue;
    checksum = crc32(out);
    if (end == chunk_end) continue;
    const std::span<std::byte> rest = std::span(scratch).first(chunk_end - end);
    image_.read_payload(item, end, rest);
    checksum = crc32(rest, checksum);
  }
}

std::uint32_t ImageComposer::payload_crc(std::size_t item) const {
  const manifest::ChecksumSlots& slots = image_.trailer().slots();
  const std::span<const std::uint32_t> chunks =
      std::span(checksums_).subspan(slots.first_chunk(item), slots.chunk_count(item));
  return combine_chunks(chunks, image_.extent(item).payload_length);
}

void ImageComposer::render_frames(const Window& window) {
  std::vector<std::byte> frame_bytes;
  for (std::size_t frame = image_.first_item_beyond(window.begin); frame <= image_.item_count(); ++frame) {
    const std::uint64_t begin = image_.frame_begin(frame);
    const std::uint64_t end = image_.frame_end(frame);
    if (begin >= window.end()) return;
    if (begin == end || end <= window.begin) continue;
    const std::uint32_t previous = frame == 0 ? 0 : payload_crc(frame - 1);
    const bool inside = begin >= window.begin && end <= window.end();
    std::span<std::byte> bytes;
    if (inside) {
      bytes = window.out.subspan(begin - window.begin, end - begin);
    } else {
      frame_bytes.resize(end - begin);
      bytes = frame_bytes;
    }
    image_.render_frame(frame, previous, bytes);
    if (window.holds(begin)) checksums_[image_.trailer().slots().frame(frame)] = crc32(bytes);
    if (inside) continue;
    const std::uint64_t from = std::max(begin, window.begin);
    const std::uint64_t to = std::min(end, window.end());
    std::memcpy(window.out.data() + (from - window.begin), bytes.data() + (from - begin), to - from);
  }
}

void ImageComposer::render_trailer(const Window& window, std::uint64_t block) {
  frames_done_.wait_for_first(block + 1);
  std::call_once(trailer_once_,
                 [this] { trailer_checksum_ = image_.trailer().render(checksums_, std::span(trailer_)); });
  const std::uint64_t begin = std::max(window.begin, image_.trailer().trailer_offset());
  std::memcpy(window.out.data() + (begin - window.begin), trailer_.data() + (begin - image_.trailer().trailer_offset()),
              window.end() - begin);
}

}  // namespace cairn::data_file
