#include "commit/model_leftovers.h"

#include <cairn/seeded_hash.h>

#include <algorithm>
#include <optional>
#include <span>
#include <unordered_set>

#include "commit/leftovers.h"
#include "commit/model_files.h"
#include "core/checksum.h"

namespace cairn::commit {
namespace {

using FileNames = std::unordered_set<std::string, SeededHash>;  // of names from untrusted files

constexpr std::uint64_t kIndexBytesMax = std::uint64_t{1} << 30;

FileNames named_by(const safetensors::Index& index) {
  FileNames names;
  for (const auto& [key, file] : index.files) names.insert(file);
  return names;
}

bool is_removable(const std::string& name) {
  return name.find('/') == std::string::npos && storage::check_name(name) && name.ends_with(kModelSuffix);
}

// The ids of the saves, other than `mine`, that have a private folder.
std::vector<SaveId> saves_with_folder(const std::vector<storage::ListedFile>& files, const SaveId& mine) {
  std::vector<SaveId> saves;
  for (const storage::ListedFile& file : files) {
    const std::optional<SaveId> id = file.is_folder ? save_id_of_folder(file.name, SaveForm::kModel) : std::nullopt;
    if (id && *id != mine) saves.push_back(*id);
  }
  return saves;
}

// Whether the dead save has committed, as far as the directory tells. False for a commit that a later save replaced.
bool has_committed(const storage::Storage& storage, const SaveId& save, const IndexInPlace& index) {
  if (index.readable && index.index.save_id == to_hex(save)) return true;
  if (storage.open(folder_of(save, SaveForm::kModel) + std::string(kCommittedName), false)) return true;
  return belongs_to(storage, std::string(kSingleModelName), save);
}

}  // namespace

Result<IndexInPlace> read_index_in_place(const storage::Storage& storage) {
  const Result<std::string> text =
      storage::read_small(storage, std::string(safetensors::kIndexName), kIndexBytesMax, true);
  IndexInPlace now;
  if (!text && text.error().code() == ErrorCode::kNotFound) return now;
  if (!text) return text.error();
  now.present = true;
  now.size = text->size();
  now.checksum = crc32(std::as_bytes(std::span(*text)));
  Result<safetensors::Index> index = safetensors::read_index(*text);
  now.readable = index.has_value();
  if (index) now.index = *std::move(index);
  return now;
}

std::vector<std::string> replaced_model_files(const storage::Storage& storage, const IndexInPlace& old,
                                              const std::vector<std::string>& kept, const SaveId& mine) {
  const auto files = storage.list();
  if (!files) return {};  // the files stay, and the new index does not name the files
  const FileNames of_old = named_by(old.index);
  const FileNames of_new(kept.begin(), kept.end());
  const std::vector<SaveId> others = saves_with_folder(*files, mine);
  std::vector<std::string> names;
  for (const storage::ListedFile& file : *files) {
    const bool is_candidate = file.is_regular && is_removable(file.name) && !of_new.contains(file.name);
    if (!is_candidate || !(of_old.contains(file.name) || is_model_file_name(file.name))) continue;
    const auto has_written = [&](const SaveId& save) { return belongs_to(storage, file.name, save); };
    // A save gives a file the single file's name only in its commit.
    const bool is_in_place = of_old.contains(file.name) || file.name == kSingleModelName;
    const bool in_flight = !is_in_place && std::any_of(others.begin(), others.end(), has_written);
    if (!in_flight) names.push_back(file.name);
  }
  std::stable_partition(names.begin(), names.end(), [](const std::string& name) { return name == kSingleModelName; });
  return names;
}

void remove_model_files(storage::Storage& storage, const std::vector<std::string>& names,
                        std::vector<std::string>& warnings) {
  for (const std::string& name : names) {
    if (!is_removable(name)) continue;
    const Result<void> removed = storage.remove(name);
    if (!removed && removed.error().code() != ErrorCode::kUnsafe) warnings.emplace_back(removed.error().what());
  }
}

Result<void> remove_dead_model_saves(storage::Storage& storage, const SaveId& mine,
                                     std::vector<std::string>& warnings) {
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage.list());
  const std::vector<SaveId> others = saves_with_folder(files, mine);
  if (others.empty()) return {};
  CAIRN_TRY_ASSIGN(const IndexInPlace index, read_index_in_place(storage));
  const FileNames needed = named_by(index.index);
  const StorageClock clock(storage, folder_of(mine, SaveForm::kModel) + "/" + std::string(kLeaseName));
  for (const SaveId& save : others) {
    const std::string folder = folder_of(save, SaveForm::kModel);
    if (!storage.join_folder(folder)) continue;  // another user's: left to this user's next save
    const Result<bool> dead = lease_has_run_out(storage, folder, clock);
    if (!dead || !*dead) {
      (void)storage.remove_folder(folder);  // succeeds only for an empty folder
      continue;
    }
    std::vector<std::string> names;
    if (has_committed(storage, save, index)) {
      // A power cut may bring the old index back: the old files are removed only once the commit is on the disk.
      CAIRN_TRY(storage.sync());
      names = read_replaced_list(storage, folder);
    } else {
      for (const storage::ListedFile& file : files) {
        const bool is_candidate = file.is_regular && is_model_file_name(file.name) && file.name != kSingleModelName;
        if (is_candidate && belongs_to(storage, file.name, save)) names.push_back(file.name);
      }
    }
    std::erase_if(names, [&needed](const std::string& name) { return needed.contains(name); });
    remove_model_files(storage, names, warnings);
    remove_private_folder(storage, folder, warnings);
  }
  return {};
}

}  // namespace cairn::commit
