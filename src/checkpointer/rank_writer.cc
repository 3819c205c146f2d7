#include "checkpointer/rank_writer.h"

#include <numeric>
#include <utility>

#include "plan/save_plan.h"

namespace cairn::checkpointer {

using manifest::TrailerItem;
using transfer::FileImage;
using transfer::ItemSource;

Result<std::vector<FileImage>> RankWriter::lay_out(std::span<const ItemSource> sources) {
  std::vector<bool> is_value;
  is_value.reserve(sources.size());
  for (const ItemSource& source : sources) is_value.push_back(source.kind == TrailerItem::Kind::kValue);
  places_.resize(sources.size());
  std::vector<FileImage> images;
  for (const std::vector<std::size_t>& file : plan::assign_files(is_value, part_.file_per_item)) {
    const auto number = static_cast<std::uint32_t>(images.size());
    std::vector<ItemSource> items;
    items.reserve(file.size());
    for (const std::size_t item : file) items.push_back(sources[item]);
    const transfer::ImageIdentity identity{part_.ticket.identity.save_id, part_.rank, number, part_.file_count};
    CAIRN_TRY_ASSIGN(FileImage image, FileImage::make(identity, items));
    for (std::size_t i = 0; i < file.size(); ++i) {
      places_[file[i]] = {number, image.extent(i).item_offset, image.extent(i).item_length};
    }
    images.push_back(std::move(image));
  }
  return images;
}

Result<void> RankWriter::write(std::span<const ItemSource> sources, const transfer::WriteOptions& options) {
  CAIRN_TRY_ASSIGN(const std::vector<FileImage> images, lay_out(sources));
  std::vector<transfer::ImageFile> files;
  for (const FileImage& image : images) {
    const auto number = static_cast<std::uint32_t>(names_.size());
    names_.push_back(transfer::data_file_name(part_.ticket, part_.rank, number));
    CAIRN_TRY_ASSIGN(std::string private_name, files_.private_name(names_.back()));
    files.push_back({std::move(private_name), &image});
  }
  CAIRN_TRY_ASSIGN(const std::vector<std::uint32_t> trailers, transfer::write_images(storage_, files, options));
  CAIRN_TRY(files_.publish(names_, options.durability));
  for (std::size_t i = 0; i < images.size(); ++i) written_.push_back({images[i].file_bytes(), trailers[i]});
  return {};
}

std::uint64_t RankWriter::bytes_written() const {
  return std::accumulate(written_.begin(), written_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const WrittenFile& file) { return sum + file.size; });
}

}  // namespace cairn::checkpointer
