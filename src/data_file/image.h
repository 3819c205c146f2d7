// Image: the layout of one file, known before the first byte is written: payloads, the frames between the payloads, and
// a trailer.
//
// A payload is the elements of a tensor, or ready bytes. Frame i is the bytes between payload i-1 and payload i; the
// first frame begins at offset 0, and the last frame ends at the trailer. A frame may depend on the CRC of the payload
// before the frame; the trailer may depend on all checksums. A format whose first bytes hold checksums renders these
// bytes a second time when all checksums are known (revised_bytes()). ImageComposer renders an image into bytes, and
// ImageWriter writes the bytes.
//
// Immutable while an image is composed; all const functions are thread-safe. The payloads' memory belongs to the
// caller.
#pragma once

#include <cairn/result.h>
#include <cairn/tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/region.h"
#include "format/manifest/trailer.h"

namespace cairn::data_file {

class Image {
 public:
  virtual ~Image() = default;
  Image(Image&&) noexcept = default;
  Image& operator=(Image&&) noexcept = default;
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  std::uint64_t file_bytes() const { return trailer_offset() + trailer_bytes(); }
  virtual std::uint64_t trailer_offset() const = 0;
  virtual std::uint64_t trailer_bytes() const = 0;

  std::size_t payload_count() const { return payloads_.size(); }
  std::uint64_t payload_begin(std::size_t payload) const { return payloads_[payload].offset; }
  std::uint64_t payload_end(std::size_t payload) const { return payloads_[payload].end(); }
  std::uint64_t payload_length(std::size_t payload) const { return payloads_[payload].length; }
  // The first payload that ends beyond `offset`; payload_count() if no payload does.
  std::size_t first_payload_beyond(std::uint64_t offset) const;
  std::uint64_t frame_begin(std::size_t frame) const { return frame == 0 ? 0 : payloads_[frame - 1].end(); }
  std::uint64_t frame_end(std::size_t frame) const {
    return frame == payloads_.size() ? trailer_offset() : payloads_[frame].offset;
  }
  // Numbers the checksums: a checksum for each 64 KiB block of each payload, and a checksum for each frame.
  const manifest::ChecksumSlots& slots() const { return slots_; }

  // Whether the payload has bytes, but no memory: the caller fills in the bytes (ImageFile::fill).
  bool is_absent(std::size_t payload) const {
    const Payload& it = payloads_[payload];
    return it.contiguous == nullptr && !it.region && it.length != 0;
  }
  // Copies the bytes [begin, begin + out.size()) of a payload with memory. Both bounds are multiples of the size of an
  // element.
  void read_payload(std::size_t payload, std::uint64_t begin, std::span<std::byte> out) const;
  // A view of the bytes [begin, begin + length) of a payload with memory, if the payload is contiguous.
  std::optional<std::span<const std::byte>> view_payload(std::size_t payload, std::uint64_t begin,
                                                         std::uint64_t length) const;

  // The bytes of a frame that depend on no checksum; nullopt for a frame to be rendered. A frame with many bytes must
  // be ready: every segment with a part of a rendered frame renders the whole frame into a buffer.
  virtual std::optional<std::string_view> ready_frame(std::size_t /*frame*/) const { return std::nullopt; }
  // Renders the whole frame. `previous_payload_crc` is the CRC of the payload before the frame (0 for the first frame).
  virtual void render_frame(std::size_t frame, std::uint32_t previous_payload_crc, std::span<std::byte> out) const = 0;
  // Renders the whole trailer from the checksums of slots(). Returns a checksum of the trailer, or 0.
  virtual std::uint32_t render_trailer(std::span<const std::uint32_t> checksums, std::span<std::byte> out) const = 0;
  // The number of bytes from the file's begin that revise() renders a second time; a multiple of a page. Frame 0 holds
  // all of these bytes.
  virtual std::uint64_t revised_bytes() const { return 0; }
  virtual void revise(std::span<const std::uint32_t> checksums, std::span<std::byte> out) const;

 protected:
  Image() = default;

  // The bytes of the tensor's elements. Fails with kInvalidArgument if they are more than 2^64.
  static Result<std::uint64_t> bytes_of(const TensorView& tensor);

  // Payloads are added in the order of their offsets; frames may be empty.
  void reserve(std::size_t payload_count);
  // A row-major copy of the elements of `tensor`, which outlives the image. Absent if the tensor's data is null, or in
  // the memory of a device.
  void add_tensor(std::uint64_t offset, std::uint64_t length, const TensorView& tensor);
  // Ready bytes, which outlive the image.
  void add_bytes(std::uint64_t offset, std::string_view bytes);

 private:
  struct Payload {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    const std::byte* contiguous = nullptr;  // the bytes, if contiguous in memory
    const TensorView* strided = nullptr;    // otherwise, with `region`: the elements to gather
    std::optional<Region> region = {};
    std::uint64_t end() const { return offset + length; }
  };
  void add(Payload payload);

  std::vector<Payload> payloads_;
  manifest::ChecksumSlots slots_;
};

}  // namespace cairn::data_file
