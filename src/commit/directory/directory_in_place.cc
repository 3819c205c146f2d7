#include "commit/directory/directory_in_place.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "commit/directory/new_directory.h"
#include "commit/lease.h"
#include "commit/pin.h"
#include "commit/private_folder.h"
#include "core/seeded_hash.h"
#include "format/torch_checkpointing/saved_metadata.h"

namespace cairn::commit {
namespace {

// The rank in `config_0.json` and `flat_3.safetensors`, names of layouts that the package's users choose.
bool is_name_of_rank_file(std::string_view name) {
  for (const std::string_view suffix : {".json", ".safetensors"}) {
    if (!name.ends_with(suffix)) continue;
    const std::string stem(name.substr(0, name.size() - suffix.size()));
    return torch_checkpointing::parse_default_file_name(stem + ".pt").has_value();
  }
  return false;
}

// Of a directory without a record.
class DefaultNames {
 public:
  explicit DefaultNames(bool has_metadata) : has_metadata_(has_metadata) {}

  bool accept(const std::string& name) {
    if (name == torch_checkpointing::kMetadataName) return true;
    if (const auto file = torch_checkpointing::parse_default_file_name(name)) {
      ranks_.insert(file->rank);
      return true;
    }
    return has_metadata_ && is_name_of_rank_file(name);
  }
  // Without `metadata.pkl` the names alone tell: of the ranks 0 to N.
  bool are_whole() const { return has_metadata_ || ranks_.empty() || *ranks_.rbegin() == ranks_.size() - 1; }

 private:
  const bool has_metadata_;
  std::set<std::uint32_t> ranks_;
};

// After a kill between two removals the rest must still look like a checkpoint: the record goes last, `metadata.pkl`
// before, and the higher ranks before the lower.
std::pair<int, std::int64_t> order_of_removal(const std::string& name) {
  if (name == kDirectoryRecordName) return {2, 0};
  if (name == torch_checkpointing::kMetadataName) return {1, 0};
  const auto file = torch_checkpointing::parse_default_file_name(name);
  return {0, file ? -std::int64_t{file->rank} : -std::int64_t{UINT32_MAX} - 1};
}

Error not_of_the_checkpoint(const std::string& name, const std::string& file) {
  return Error(ErrorCode::kInvalidArgument,
               "the directory holds a file that is not of its checkpoint, and that the save would remove: move the "
               "file, or save into a new directory")
      .file(name + "/" + file);
}

Result<std::unique_ptr<storage::Storage>> open_in_place(const storage::Storage& parent, const std::string& name) {
  (void)parent.touched_at("");  // a network file system may remember the old names
  auto opened = parent.open_folder(name);
  if (opened) return opened;
  if (opened.error().code() == ErrorCode::kNotFound) return std::unique_ptr<storage::Storage>();
  const bool is_no_directory = opened.error().code() == ErrorCode::kUnsafe || opened.error().error_number() == ENOTDIR;
  if (!is_no_directory) return opened;
  return Error(ErrorCode::kInvalidArgument, "a link or a file is in the place of the directory").file(name);
}

}  // namespace

Result<DirectoryInPlace> look_at_directory(const storage::Storage& parent, const std::string& name) {
  CAIRN_TRY_ASSIGN(std::unique_ptr<storage::Storage> storage, open_in_place(parent, name));
  if (!storage) return DirectoryInPlace();
  CAIRN_TRY_ASSIGN(DirectoryInPlace now, look_into_directory(*storage, name, RanksInPlace::kAll));
  now.storage = std::move(storage);
  return now;
}

Result<DirectoryInPlace> look_into_directory(const storage::Storage& directory, const std::string& name,
                                             RanksInPlace ranks) {
  DirectoryInPlace now;
  CAIRN_TRY_ASSIGN(now.record, read_metadata_in_place(directory, std::string(kDirectoryRecordName)));
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> listed, directory.list());
  std::unordered_set<std::string, SeededHash> recorded{std::string(kDirectoryRecordName)};
  if (now.record.record) {
    for (const manifest::CommitRecord::File& file : now.record.record->files) recorded.insert(file.name);
  }
  DefaultNames names(std::any_of(listed.begin(), listed.end(), [](const storage::ListedFile& file) {
    return file.name == torch_checkpointing::kMetadataName;
  }));
  for (const storage::ListedFile& file : listed) {
    if (file.name == storage::kLockName) continue;
    if (file.is_folder && save_id_of_folder(file.name)) {
      now.private_folders.push_back(file.name);
      continue;
    }
    if (file.name == kPinName) {
      return Error(ErrorCode::kUnavailable,
                   "the checkpoint in the directory is pinned: unpin it (`cairn unpin`), or move the directory")
          .file(name + "/" + file.name);
    }
    const bool is_known = recorded.contains(file.name) || (!now.record.record && names.accept(file.name));
    if (!file.is_regular || !is_known) return not_of_the_checkpoint(name, file.name);
    now.files.push_back(file.name);
  }
  std::sort(now.files.begin(), now.files.end());
  if (ranks == RanksInPlace::kAll && !names.are_whole()) return not_of_the_checkpoint(name, now.files.front());
  return now;
}

void remove_old_directory(storage::Storage& parent, const std::string& name, storage::Storage& directory,
                          const DirectoryInPlace& old, std::vector<std::string>& warnings) {
  std::vector<std::string> files = old.files;
  std::ranges::stable_sort(files, {}, order_of_removal);
  for (const std::string& file : files) {
    if (const auto removed = directory.remove(file); !removed) warnings.emplace_back(removed.error().what());
  }
  for (const std::string& folder : old.private_folders) {
    if (directory.join_folder(folder)) remove_private_folder(directory, folder, warnings);
  }
  (void)directory.remove(storage::kLockName);  // left by a kill, or on a file system without locks
  if (const auto removed = parent.remove_folder(name); !removed) {
    warnings.push_back("the replaced directory stays as '" + name +
                       "', with files that were added to it: " + removed.error().what());
  }
}

}  // namespace cairn::commit
