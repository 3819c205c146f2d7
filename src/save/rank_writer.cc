#include "save/rank_writer.h"

#include <algorithm>
#include <utility>

#include "save/item_files.h"
#include "save/model_image.h"

namespace cairn::checkpointer {

using data_file::FileImage;
using data_file::ItemSource;

Result<std::unique_ptr<RankWriter>> RankWriter::make(const RankPart& part, std::span<const ItemSource> sources,
                                                     std::shared_ptr<DevicePayloads> devices) {
  std::unique_ptr<RankWriter> writer(new RankWriter(part));
  writer->devices_ = std::move(devices);
  CAIRN_TRY(writer->lay_out(sources));
  return writer;
}

Result<void> RankWriter::lay_out(std::span<const ItemSource> sources) {
  locations_.resize(sources.size());
  for (const ItemFile& file : item_files(sources, part_.file_per_item)) {
    const auto number = static_cast<std::uint32_t>(images_.size());
    const data_file::ImageIdentity identity{part_.ticket.identity.save_id, part_.rank, number, part_.file_count};
    CAIRN_TRY_ASSIGN(FileImage image, FileImage::make(identity, file.sources));
    for (std::size_t i = 0; i < file.indices.size(); ++i) {
      locations_[file.indices[i]] = {number, image.range(i).item_offset, image.range(i).item_length};
    }
    names_.push_back(commit::data_file_name(part_.ticket, part_.rank, number));
    images_.push_back({names_.back(), std::make_unique<FileImage>(std::move(image))});
    FilePayloads payloads;
    for (const ItemSource& source : file.sources) {
      payloads.push_back({source.tensor == nullptr ? nullptr : &source.tensor->local, source.entry->fqn});
    }
    add_device_payloads(std::move(payloads));
  }
  return {};
}

void RankWriter::add_device_payloads(FilePayloads payloads) {
  const bool has_any = std::any_of(payloads.begin(), payloads.end(), [](const DevicePayloads::Payload& it) {
    return it.tensor != nullptr && !it.tensor->device.is_cpu();
  });
  device_payloads_.push_back(has_any ? std::move(payloads) : FilePayloads());
}

Result<void> RankWriter::read_devices(std::size_t file, std::span<const data_file::PayloadPart> parts,
                                      const data_file::WriteOptions& options) {
  const os::Gate::Pass pass(options.sources);
  if (!pass.is_granted()) return Error(ErrorCode::kCancelled, "the save was given up before its tensors were read");
  return devices_->read(device_payloads_[file], parts, options.interrupted);
}

Result<std::unique_ptr<RankWriter>> RankWriter::make_model(const RankPart& part, std::span<const ItemSource> sources,
                                                           std::span<const AssignedFile> files,
                                                           safetensors::FileSet::Kind kind,
                                                           std::shared_ptr<DevicePayloads> devices) {
  std::unique_ptr<RankWriter> writer(new RankWriter(part));
  writer->devices_ = std::move(devices);
  writer->locations_.resize(sources.size());
  std::size_t first = 0;
  for (const AssignedFile& file : files) {
    std::vector<ModelItem> items;
    for (const ItemSource& source : sources.subspan(first, file.item_count)) {
      if (source.tensor == nullptr) {
        return Error(ErrorCode::kInvalidArgument,
                     "safetensors can't hold this form of tensor, nor values: leave the entry out")
            .key(source.entry->fqn);
      }
      items.push_back({source.entry->fqn, &source.tensor->local, &source.tensor->box.offsets()});
    }
    CAIRN_TRY_ASSIGN(data_file::SafetensorsImage image,
                     make_model_image(part.ticket.identity, items, {kind, part.file_count}));
    FilePayloads payloads;
    for (std::size_t payload = 0; payload < image.payload_count(); ++payload) {
      const std::size_t item = image.item_of(payload);
      payloads.push_back({items[item].tensor, items[item].key});
      writer->locations_[first + item] = {static_cast<std::uint32_t>(writer->images_.size()),
                                          image.payload_begin(payload), image.payload_length(payload)};
    }
    first += file.item_count;
    writer->names_.push_back(file.name);
    writer->images_.push_back({file.name, std::make_unique<data_file::SafetensorsImage>(std::move(image))});
    writer->add_device_payloads(std::move(payloads));
  }
  return writer;
}

std::unique_ptr<RankWriter> RankWriter::of_images(const RankPart& part, std::vector<NamedImage> images) {
  std::unique_ptr<RankWriter> writer(new RankWriter(part));
  for (const NamedImage& image : images) writer->names_.push_back(image.name);
  writer->images_ = std::move(images);
  return writer;
}

Result<void> RankWriter::enter(storage::Storage& storage) {
  files_.emplace(storage, part_.ticket.identity);
  private_names_.clear();
  for (const std::string& name : names_) {
    CAIRN_TRY_ASSIGN(std::string private_name, files_->private_name(name));
    private_names_.push_back(std::move(private_name));
  }
  return {};
}

std::uint64_t RankWriter::file_bytes() const {
  std::uint64_t bytes = 0;
  for (const NamedImage& image : images_) bytes += image.image->file_bytes();
  return bytes;
}

Result<std::vector<WrittenFile>> RankWriter::write(storage::Storage& storage, const data_file::WriteOptions& options) {
  std::vector<data_file::ImageFile> files;
  for (std::size_t i = 0; i < images_.size(); ++i) {
    data_file::ImageFile& file = files.emplace_back(data_file::ImageFile{private_names_[i], images_[i].image.get()});
    file.fill = images_[i].fill;
    if (i < device_payloads_.size() && !device_payloads_[i].empty()) {
      file.fill = [this, i, &options](std::span<const data_file::PayloadPart> parts) {
        return read_devices(i, parts, options);
      };
    }
  }
  data_file::WriteOptions write_options = options;
  if (part_.owns_sources) write_options.sources = nullptr;
  CAIRN_TRY_ASSIGN(const std::vector<std::uint32_t> trailers, data_file::write_images(storage, files, write_options));
  // The gate is closed: the save was given up, and must publish no file, even if all files are written.
  if (options.sources != nullptr && !os::Gate::Pass(options.sources).is_granted()) {
    return Error(ErrorCode::kCancelled, "the save was given up before its files were published");
  }
  if (part_.publishes) CAIRN_TRY(files_->publish(names_, options.durability));
  std::vector<WrittenFile> written;
  for (std::size_t i = 0; i < images_.size(); ++i) written.push_back({images_[i].image->file_bytes(), trailers[i]});
  images_.clear();
  device_payloads_.clear();
  return written;
}

}  // namespace cairn::checkpointer
