#include "commit/model/model_in_place.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>
#include <unordered_set>

#include "commit/dcp_names.h"
#include "commit/model/model_files.h"
#include "core/checksum.h"
#include "core/seeded_hash.h"

namespace cairn::commit {
namespace {

constexpr std::uint64_t kIndexBytesMax = std::uint64_t{1} << 30;
constexpr std::uint64_t kStampedBytes = 4096;
constexpr int kReadsMax = 16;

bool is_absent(const Error& error) { return error.error_number() == ENOENT; }

// A save in flight has a lease, and no mark of a commit. A folder that cannot be listed belongs to another user.
bool is_in_flight(const storage::Storage& storage, const SaveId& save) {
  const auto files = storage.list(folder_of(save, SaveForm::kModel));
  if (!files) return !is_absent(files.error());
  const auto has = [&files](std::string_view name) {
    return std::any_of(files->begin(), files->end(), [name](const auto& file) { return file.name == name; });
  };
  return has(kLeaseName) && !has(kCommittedName);
}

// Whether one of the saves wrote the file.
Result<bool> is_of(const storage::Storage& storage, const std::string& name, const std::vector<SaveId>& saves) {
  for (const SaveId& save : saves) {
    if (name.find(to_decimal(save)) != std::string::npos) return true;
  }
  // A name with the id of a save tells the save. A save gives a file the single file's name only in its commit.
  if (saves.empty() || name == kSingleModelName || names_a_save(name)) return false;
  const Result<ModelFileOrigin> origin = origin_of_model_file(storage, name);
  if (!origin && origin.error().code() == ErrorCode::kUnavailable) return origin.error();
  return origin && origin->save_id && std::find(saves.begin(), saves.end(), *origin->save_id) != saves.end();
}

Result<std::string> stamp_or_mark(const storage::Storage& storage, const storage::ListedFile& file) {
  if (!file.is_regular) return std::string();
  Result<std::string> stamp = stamp_of(storage, file.name);
  return stamp || is_absent(stamp.error()) ? std::move(stamp) : std::string("unreadable");
}

}  // namespace

Result<IndexInPlace> read_index_in_place(const storage::Storage& storage) {
  for (int tries = 1;; ++tries) {
    const Result<std::string> text =
        storage::read_small(storage, std::string(safetensors::kIndexName), kIndexBytesMax, true);
    IndexInPlace now;
    if (text) {
      now.present = true;
      now.size = text->size();
      now.checksum = crc32(std::as_bytes(std::span(*text)));
      Result<safetensors::Index> index = safetensors::read_index(*text);
      now.readable = index.has_value();
      if (index) now.index = *std::move(index);
      return now;
    }
    if (is_absent(text.error())) return now;
    // kNotFound without ENOENT: on a network file system the file was replaced while it was open.
    if (text.error().code() != ErrorCode::kNotFound) return text.error();
    if (tries == kReadsMax) {
      return Error(ErrorCode::kUnavailable, "the index is replaced again and again while it is being read")
          .file(safetensors::kIndexName)
          .actual(text.error().what());
    }
  }
}

Result<std::string> stamp_of(const storage::Storage& storage, const std::string& name) {
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::ReadableFile> file, storage.open(name, false));
  std::vector<std::byte> first(std::min(file->size(), kStampedBytes));
  CAIRN_TRY(file->read_at(0, first));
  CAIRN_TRY_ASSIGN(const double touched_at, storage.touched_at(name));
  return std::to_string(file->size()) + "-" + std::to_string(crc32(first)) + "-" + std::to_string(touched_at);
}

std::vector<SaveId> model_saves_with_folder(const std::vector<storage::ListedFile>& files, const SaveId& mine) {
  std::vector<SaveId> saves;
  for (const storage::ListedFile& file : files) {
    const std::optional<SaveId> id = file.is_folder ? save_id_of_folder(file.name, SaveForm::kModel) : std::nullopt;
    if (id && *id != mine) saves.push_back(*id);
  }
  return saves;
}

Result<ModelInPlace> look_at_model(const storage::Storage& storage, const SaveId& mine, std::string_view extra_name) {
  CAIRN_TRY_ASSIGN(std::vector<storage::ListedFile> files, storage.list());
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  ModelInPlace model;
  CAIRN_TRY_ASSIGN(model.index, read_index_in_place(storage));
  std::unordered_set<std::string, SeededHash> named;
  for (const auto& [key, file] : model.index.index.files) named.insert(file);
  std::vector<SaveId> saves = model_saves_with_folder(files, mine);
  model.has_other_saves = !saves.empty();
  std::erase_if(saves, [&storage](const SaveId& save) { return !is_in_flight(storage, save); });
  saves.push_back(mine);
  for (const storage::ListedFile& file : files) {
    if (!file.is_folder && is_dcp_file_name(file.name)) model.dcp_file = file.name;
    const bool is_index = file.name == safetensors::kIndexName;
    const bool is_of_model = named.contains(file.name) || is_model_file_name(file.name) || file.name == extra_name;
    if (file.is_folder || !(is_index || is_of_model || file.name.ends_with(kModelSuffix))) continue;
    if (!is_index && !is_of_model) {
      model.foreign.push_back(file.name);
      continue;
    }
    if (!is_index && !named.contains(file.name) && file.is_regular) {
      CAIRN_TRY_ASSIGN(const bool is_in_flight, is_of(storage, file.name, saves));
      if (is_in_flight) continue;
    }
    Result<std::string> stamp = stamp_or_mark(storage, file);
    if (!stamp) continue;  // removed since the listing
    if (is_index) {
      model.index_stamp = *std::move(stamp);
    } else {
      model.files.push_back({file.name, *std::move(stamp)});
    }
  }
  return model;
}

}  // namespace cairn::commit
