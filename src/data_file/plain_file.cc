#include "data_file/plain_file.h"

#include <string>
#include <utility>

#include "core/checked.h"
#include "data_file/torch_save_image.h"

namespace cairn::data_file {
namespace {

class BytesImage final : public Image {
 public:
  static Result<BytesImage> make(std::span<const std::uint64_t> payload_bytes,
                                 std::optional<std::span<const std::byte>> staged) {
    BytesImage image;
    image.reserve(payload_bytes.size());
    image.views_.reserve(payload_bytes.size());  // the views stay where they are
    for (const std::uint64_t bytes : payload_bytes) {
      if (bytes > kImageBytesMax || image.end_ > kImageBytesMax - bytes) {
        return Error(ErrorCode::kInvalidArgument, "a file of more than 2^62 bytes");
      }
      if (staged && image.end_ + bytes > staged->size()) {
        return Error(ErrorCode::kInvalidArgument, "a file that is larger than its staged bytes")
            .expected(std::to_string(image.end_ + bytes) + " bytes")
            .actual(std::to_string(staged->size()));
      }
      const void* const data = staged ? staged->data() + image.end_ : nullptr;
      image.views_.push_back(TensorView::contiguous(data, DType::kUInt8, {static_cast<std::int64_t>(bytes)}));
      image.add_tensor(image.end_, bytes, image.views_.back());
      image.end_ += bytes;
    }
    return image;
  }

  std::uint64_t trailer_offset() const override { return end_; }
  std::uint64_t trailer_bytes() const override { return 0; }
  void render_frame(std::size_t /*frame*/, std::uint32_t /*previous_payload_crc*/,
                    std::span<std::byte> /*out*/) const override {}
  std::uint32_t render_trailer(std::span<const std::uint32_t> /*checksums*/,
                               std::span<std::byte> /*out*/) const override {
    return 0;
  }

 private:
  static constexpr std::uint64_t kImageBytesMax = std::uint64_t{1} << 62;
  BytesImage() = default;

  std::vector<TensorView> views_;
  std::uint64_t end_ = 0;
};

}  // namespace

Result<std::unique_ptr<Image>> PlainFile::image(std::optional<std::span<const std::byte>> staged) const {
  if (form == Form::kTorchSave) {
    CAIRN_TRY_ASSIGN(TorchSaveImage image, TorchSaveImage::of_staged(payload_bytes, staged));
    return std::unique_ptr<Image>(std::make_unique<TorchSaveImage>(std::move(image)));
  }
  CAIRN_TRY_ASSIGN(BytesImage image, BytesImage::make(payload_bytes, staged));
  return std::unique_ptr<Image>(std::make_unique<BytesImage>(std::move(image)));
}

}  // namespace cairn::data_file
