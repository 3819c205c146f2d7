#include "checkpoint/source_files.h"

#include <string>
#include <system_error>
#include <utility>

#include "checkpoint/checkpoint_impl.h"
#include "checkpoint/model_directory.h"
#include "format/safetensors/index.h"

namespace cairn::checkpointer {

std::vector<std::filesystem::path> source_files(const Checkpoint& source) {
  const Catalog& catalog = source.catalog();
  const std::filesystem::path directory = source.impl().directory;
  std::vector<std::filesystem::path> files;
  files.reserve(catalog.files.size() + 1);
  for (const std::string& name : catalog.files) files.push_back(directory / name);
  if (catalog.format == CheckpointFormat::kDcp) files.push_back(directory / source.impl().metadata_name);
  if (catalog.format == CheckpointFormat::kSafetensors) {
    files.push_back(directory / safetensors::kIndexName);
    const Result<std::vector<storage::ListedFile>> listed = source.impl().storage->list();
    if (!listed) return files;
    for (const storage::ListedFile& file : *listed) {
      if (model_directory::is_index_name(file.name)) files.push_back(directory / file.name);
    }
  }
  return files;
}

std::optional<std::filesystem::path> source_file_at(const Checkpoint& source, const std::filesystem::path& target) {
  for (std::filesystem::path& file : source_files(source)) {
    std::error_code ignored;  // a missing file is no target
    if (std::filesystem::equivalent(file, target, ignored)) return std::move(file);
  }
  return std::nullopt;
}

}  // namespace cairn::checkpointer
