#include "checkpoint/torch_save_file.h"

#include <algorithm>
#include <array>
#include <utility>

#include "checkpoint/checkpoint_impl.h"
#include "core/checksum.h"
#include "data_file/data_file.h"
#include "format/torch_file/state_file.h"

namespace cairn::checkpointer {
namespace {

using data_file::DataFile;
using torch_file::StateFile;

std::string identity_of(const DataFile& file) {
  return "torch.save file of " + std::to_string(file.bytes().size()) + " bytes, " +
         crc_text(file.state_file()->checksum());
}

Catalog catalog_of(const StateFile& state, const std::string& name) {
  Catalog catalog;
  catalog.format = CheckpointFormat::kTorchSave;
  catalog.files.push_back(name);
  for (const StateFile::Entry& entry : state.entries()) {
    const StateFile::Range range = state.range(entry);
    const ItemLocation location{0, range.offset, range.length};
    catalog.paths.emplace_back(entry.fqn, entry.path);
    const auto index = entry.tensor ? catalog.tensors.size() : catalog.values.size();
    catalog.keys.push_back({entry.tensor.has_value(), static_cast<std::uint32_t>(index)});
    if (!entry.tensor) {
      catalog.values.push_back({entry.fqn, location});
      continue;
    }
    const torch_file::TensorNode& node = *entry.tensor;
    CatalogTensor& tensor = catalog.tensors.emplace_back(
        CatalogTensor{entry.fqn, node.dtype, node.sizes, node.requires_grad, {}, {location}});
    tensor.boxes.assign(node.sizes.size(), 0);
    tensor.boxes.insert(tensor.boxes.end(), node.sizes.begin(), node.sizes.end());
  }
  return catalog;
}

}  // namespace

bool is_torch_save(const storage::Storage& storage, const std::string& name) {
  const Result<std::unique_ptr<storage::ReadableFile>> file = storage.open(name, true);
  if (!file) return false;
  std::array<std::byte, StateFile::kFirstBytes> buffer{};
  const std::span<std::byte> first = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), (*file)->size()));
  return (*file)->read_at(0, first).has_value() && StateFile::is_begun_by(first);
}

Result<Checkpoint> open_torch_save(std::unique_ptr<storage::Storage> storage, const std::string& name) {
  CAIRN_TRY_ASSIGN(std::unique_ptr<DataFile> file, DataFile::open_torch_save(*storage, name));
  auto impl = std::make_unique<Checkpoint::Impl>();
  impl->storage = std::move(storage);
  impl->metadata_name = name;
  impl->catalog = catalog_of(*file->state_file(), name);
  impl->identity = identity_of(*file);
  impl->put_file(std::move(file));
  CAIRN_TRY(impl->catalog.index());
  return Checkpoint(std::move(impl));
}

Result<std::string> identity_of_torch_save(const storage::Storage& storage, const std::string& name) {
  CAIRN_TRY_ASSIGN(const std::unique_ptr<DataFile> file, DataFile::open_torch_save(storage, name));
  return identity_of(*file);
}

}  // namespace cairn::checkpointer
