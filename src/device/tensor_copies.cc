#include "device/tensor_copies.h"

#include <algorithm>

#include "core/region.h"
#include "device/registration.h"

namespace cairn::device {
namespace {

// The drivers' limit of a pitch.
constexpr std::int64_t kPitchMax = (std::int64_t{1} << 31) - 1;

class CopyList {
 public:
  CopyList(std::vector<Copy>& copies, const std::byte* pieces) : copies_(copies), pieces_(pieces) {}

  // Adds a row of `width` bytes. Rows are added in the order of the host memory, without gaps.
  void add(std::byte* host, std::uintptr_t device, std::uint64_t width) {
    while (width != 0) {
      const std::uint64_t bytes = pieces_ == nullptr ? width : std::min(width, bytes_to_piece_end(pieces_, host));
      add_within_piece(host, device, bytes);
      host += bytes;
      device += bytes;
      width -= bytes;
    }
  }

 private:
  bool is_new_piece(const std::byte* host) const {
    return pieces_ != nullptr && static_cast<std::uint64_t>(host - pieces_) % Registration::kPieceBytes == 0;
  }

  // Makes the row another row of the last copy where the driver allows it.
  void add_within_piece(std::byte* host, std::uintptr_t device, std::uint64_t width) {
    if (!is_first_ && !is_new_piece(host)) {
      Copy& last = copies_.back();
      const auto pitch = static_cast<std::int64_t>(device - last_row_);
      const bool fits = last.width == width && pitch >= static_cast<std::int64_t>(width) && pitch <= kPitchMax &&
                        (last.rows == 1 || pitch == static_cast<std::int64_t>(last.device_pitch));
      if (fits) {
        last.device_pitch = static_cast<std::uint64_t>(pitch);
        last.host_pitch = width;
        ++last.rows;
        last_row_ = device;
        return;
      }
    }
    copies_.push_back({host, device, width});
    last_row_ = device;
    is_first_ = false;
  }

  std::vector<Copy>& copies_;
  const std::byte* const pieces_;
  std::uintptr_t last_row_ = 0;  // the device address of the last row
  bool is_first_ = true;
};

}  // namespace

void append_copies(const TensorView& tensor, std::uint64_t begin, std::span<std::byte> host, const std::byte* pieces,
                   std::vector<Copy>& copies) {
  if (host.empty()) return;
  const auto element = static_cast<std::int64_t>(item_bytes(tensor.dtype));
  const auto device = reinterpret_cast<std::uintptr_t>(tensor.data);
  const Region region(tensor.sizes, row_major_strides(tensor.sizes), tensor.strides);
  CopyList list(copies, pieces);
  if (region.is_linear()) return list.add(host.data(), device + begin, host.size());
  const auto first = static_cast<std::int64_t>(begin) / element;
  const auto last = first + static_cast<std::int64_t>(host.size()) / element;
  const bool is_dense = region.memory_step() == 1;
  region.for_runs(first, last, [&](const Run& run) {
    std::byte* target = host.data() + (run.file_offset - first) * element;
    std::uintptr_t source = device + static_cast<std::uintptr_t>(run.memory_offset * element);
    if (is_dense) return list.add(target, source, static_cast<std::uint64_t>(run.count * element));
    for (std::int64_t i = 0; i < run.count; ++i) {
      list.add(target + i * element, source + static_cast<std::uintptr_t>(i * region.memory_step() * element),
               static_cast<std::uint64_t>(element));
    }
  });
}

}  // namespace cairn::device
