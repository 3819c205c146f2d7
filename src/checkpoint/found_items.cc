#include "checkpoint/found_items.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "checkpoint/model_directory.h"
#include "commit/dcp_names.h"
#include "commit/directory/new_directory.h"
#include "core/checksum.h"
#include "core/seeded_hash.h"

namespace cairn::checkpointer {
namespace {

using torch_checkpointing::FileForm;
using torch_checkpointing::SavedItem;
using torch_checkpointing::SavedMetadata;

// As of `.metadata`: the ranks of the largest jobs make some 100 MB.
constexpr std::uint64_t kSavedMetadataBytesMax = std::uint64_t{1} << 34;

// Of metadata.pkl; unset if the directory has none.
struct ReadMetadata {
  SavedMetadata metadata;
  std::uint32_t checksum = 0;
};

Result<std::optional<ReadMetadata>> read_saved_metadata_in(const storage::Storage& storage) {
  const std::string name(torch_checkpointing::kMetadataName);
  const Result<std::string> bytes = storage::read_small(storage, name, kSavedMetadataBytesMax);
  if (!bytes && bytes.error().error_number() == ENOENT) return std::optional<ReadMetadata>();
  if (!bytes) return Error(bytes.error()).file(name);
  const auto span = std::as_bytes(std::span(*bytes));
  Result<SavedMetadata> metadata = torch_checkpointing::read_saved_metadata(span);
  if (!metadata) return std::move(metadata).error().file(name);
  return std::optional(ReadMetadata{*std::move(metadata), crc32(span)});
}

// The item of a JSON file without a layout: "config" of "config_0.json" and of "config.json".
std::optional<torch_checkpointing::DefaultFile> json_file(const std::string& name) {
  constexpr std::string_view kSuffix = ".json";
  if (!name.ends_with(kSuffix) || name.size() == kSuffix.size()) return std::nullopt;
  const std::string_view stem = std::string_view(name).substr(0, name.size() - kSuffix.size());
  if (const auto ranked = torch_checkpointing::parse_default_file_name(std::string(stem) + ".pt")) {
    return torch_checkpointing::DefaultFile{stem.substr(0, ranked->item.size()), ranked->rank};
  }
  return torch_checkpointing::DefaultFile{stem, 0};
}

class FoundItemSearch {
 public:
  explicit FoundItemSearch(std::vector<storage::ListedFile> listed) : listed_(std::move(listed)) {
    for (const storage::ListedFile& file : listed_) {
      if (!file.is_folder) names_.insert(file.name);
    }
  }

  // The files that metadata.pkl names. A file in a subfolder is taken for present: opening it shows whether it is.
  Result<void> add_saved(const SavedMetadata& metadata, std::size_t index) {
    const SavedItem& saved = metadata.items[index];
    FoundItem item{saved.name, index, {}};
    for (std::uint32_t rank = 0; rank < metadata.world_size; ++rank) {
      const std::optional<torch_checkpointing::RankFile>& layout = saved.files[rank];
      FoundItemFile file{rank, layout ? layout->name : torch_checkpointing::default_file_name(saved.name, rank),
                         layout ? layout->form : FileForm::kTorch};
      if (!storage::check_name(file.name)) {
        return Error(ErrorCode::kUnsafe, "metadata.pkl names a file outside the directory").file(file.name);
      }
      const bool is_in_subfolder = file.name.find('/') != std::string::npos;
      if (!is_in_subfolder && !names_.contains(file.name)) continue;
      if (!claimed_.insert(file.name).second) {
        return Error(ErrorCode::kCorrupt, "metadata.pkl names one file for two items or ranks").file(file.name);
      }
      item.files.push_back(std::move(file));
    }
    known_.insert(item.name);
    found_.items.push_back(std::move(item));
    return {};
  }

  // The files whose names tell item and rank. `world_size`: unset if there is no metadata.pkl.
  void add_named(std::optional<std::uint32_t> world_size) {
    std::map<std::string, FoundItem, std::less<>> items;
    for (const storage::ListedFile& listed : listed_) {
      if (listed.name == torch_checkpointing::kMetadataName || claimed_.contains(listed.name)) continue;
      if (listed.name.starts_with('.')) continue;
      auto named = torch_checkpointing::parse_default_file_name(listed.name);
      const bool is_torch = named.has_value();
      if (!named && world_size) named = json_file(listed.name);
      const bool is_of_job = named && (!world_size || named->rank < *world_size);
      if (listed.is_folder || !is_of_job || known_.contains(named->item)) {
        if (!listed.is_folder || !is_parent_of_claimed(listed.name)) found_.left_out.push_back(listed.name);
        continue;
      }
      FoundItem& item = items[std::string(named->item)];
      item.name = named->item;
      item.files.push_back({named->rank, listed.name, is_torch ? FileForm::kTorch : FileForm::kJson});
    }
    for (auto& [name, item] : items) {
      std::ranges::sort(item.files, {}, [](const FoundItemFile& file) { return std::pair(file.rank, file.form); });
      leave_out_doubles(item);
      found_.items.push_back(std::move(item));
    }
  }

  FoundItems take() && { return std::move(found_); }

 private:
  bool is_parent_of_claimed(const std::string& folder) const {
    const std::string prefix = folder + "/";
    return std::ranges::any_of(claimed_, [&](const std::string& name) { return name.starts_with(prefix); });
  }

  // `x_0.pt`, `x_0.json` and `x.json` have one item and rank: the file of torch.save counts, else the first by name.
  void leave_out_doubles(FoundItem& item) {
    std::vector<FoundItemFile> kept;
    for (FoundItemFile& file : item.files) {
      const bool is_double = !kept.empty() && kept.back().rank == file.rank;
      if (is_double) {
        found_.left_out.push_back(std::move(file.name));
      } else {
        kept.push_back(std::move(file));
      }
    }
    item.files = std::move(kept);
  }

  std::vector<storage::ListedFile> listed_;
  std::unordered_set<std::string, SeededHash> names_;
  std::unordered_set<std::string, SeededHash> claimed_;
  std::unordered_set<std::string, SeededHash, std::equal_to<>> known_;  // the items of metadata.pkl
  FoundItems found_;
};

}  // namespace

bool holds_torch_checkpointing(const storage::Storage& storage) {
  const Result<std::vector<storage::ListedFile>> files = storage.list();
  if (!files) return false;
  bool has_model = false;
  bool has_metadata = false;
  bool has_other = false;
  bool has_record = false;  // of Cairn
  std::set<std::uint32_t> ranks;
  for (const storage::ListedFile& file : *files) {
    const auto named = torch_checkpointing::parse_default_file_name(file.name);
    const bool is_of_rank = named && !file.is_folder;
    if (is_of_rank) ranks.insert(named->rank);
    has_other |= !is_of_rank && !file.name.starts_with('.');
    if (file.is_folder) continue;
    if (commit::is_dcp_file_name(file.name)) return false;
    has_model |= model_directory::is_index_name(file.name) || model_directory::has_model_suffix(file.name);
    has_metadata |= file.name == torch_checkpointing::kMetadataName;
    has_record |= file.name == commit::kDirectoryRecordName;
  }
  if (has_record) return true;
  if (has_model) {
    if (!has_metadata) return false;
    const auto metadata = read_saved_metadata_in(storage);
    return metadata && metadata->has_value();
  }
  const bool are_all_ranks = !ranks.empty() && *ranks.rbegin() == ranks.size() - 1;
  return has_metadata || (are_all_ranks && !has_other);
}

Result<FoundItems> find_items(const storage::Storage& storage) {
  CAIRN_TRY_ASSIGN(std::optional<ReadMetadata> read, read_saved_metadata_in(storage));
  CAIRN_TRY_ASSIGN(std::vector<storage::ListedFile> listed, storage.list());
  std::ranges::sort(listed, {}, &storage::ListedFile::name);
  FoundItemSearch search(std::move(listed));
  std::optional<std::uint32_t> world_size;
  if (read) {
    world_size = read->metadata.world_size;
    for (std::size_t i = 0; i < read->metadata.items.size(); ++i) CAIRN_TRY(search.add_saved(read->metadata, i));
  }
  search.add_named(world_size);
  FoundItems found = std::move(search).take();
  if (read) {
    found.metadata = std::move(read->metadata);
    found.metadata_checksum = read->checksum;
  }
  return found;
}

}  // namespace cairn::checkpointer
