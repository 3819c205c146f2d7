#include "checkpoint/missing_checkpoint.h"

#include <cairn/bucket_url.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_directories.h"
#include "checkpoint/listed_keys.h"
#include "checkpoint/torch_save_file.h"
#include "core/step_in_name.h"
#include "storage/open_directory.h"

namespace cairn::checkpointer {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLookedAtMax = 1000;         // directories
constexpr std::size_t kLookedAtInBucketsMax = 20;  // of a bucket, by a request each
constexpr std::size_t kNamedSavesMax = 5;

bool holds_checkpoint(const fs::path& directory, const std::string& metadata_name) {
  const auto storage = storage::open_directory(directory);
  return storage && (*storage)->open(metadata_name, true);
}

std::vector<fs::path> directories_in(const fs::path& root) {
  auto directories = storage::directories_in(root);
  if (!directories || !*directories) return {};
  std::sort((*directories)->begin(), (*directories)->end(), [](const fs::path& a, const fs::path& b) {
    return std::tuple(step_in_name(a), a) < std::tuple(step_in_name(b), b);
  });
  return std::move(**directories);
}

// "step-10, step-20 and 3 more"; empty if none of the directories holds a checkpoint.
std::string checkpoints_among(const std::vector<fs::path>& directories, const std::string& metadata_name) {
  std::string text;
  std::size_t count = 0;
  // The last kLookedAtMax directories, which have the highest numbers, are the newest.
  const bool is_remote = !directories.empty() && is_bucket_url(directories.front());
  const std::size_t first =
      directories.size() - std::min(directories.size(), is_remote ? kLookedAtInBucketsMax : kLookedAtMax);
  for (std::size_t i = first; i < directories.size(); ++i) {
    if (is_private_folder(directories[i]) || !holds_checkpoint(directories[i], metadata_name)) continue;
    if (++count > kNamedSavesMax) continue;
    text += (count == 1 ? "" : ", ") + directories[i].filename().string();
  }
  if (count > kNamedSavesMax) text += " and " + std::to_string(count - kNamedSavesMax) + " more";
  return text;
}

// The directory that contains `directory`.
fs::path parent_of(const fs::path& directory) {
  const fs::path parent = (directory.has_filename() ? directory : directory.parent_path()).parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

// Names the checkpoints beside a missing directory, for a user who mistyped the name.
std::string beside(const fs::path& directory, const std::string& metadata_name) {
  const fs::path parent = parent_of(directory);
  const std::string found = checkpoints_among(directories_in(parent), metadata_name);
  return found.empty() ? "" : ". '" + parent.string() + "' holds " + found;
}

// "pytorch_model-00001-of-00002.bin and 1 more"; empty if the directory has no file of torch.save.
std::string torch_files_in(const fs::path& directory) {
  const auto storage = storage::open_directory(directory);
  if (!storage) return {};
  const auto files = (*storage)->list();
  if (!files) return {};
  constexpr std::array<std::string_view, 4> kSuffixes{".bin", ".ckpt", ".pt", ".pth"};
  std::vector<std::string> names;
  for (const storage::ListedFile& file : *files) {
    const bool has_suffix = std::any_of(kSuffixes.begin(), kSuffixes.end(),
                                        [&](std::string_view suffix) { return file.name.ends_with(suffix); });
    if (!has_suffix || names.size() == kLookedAtMax) continue;
    if (is_torch_save(**storage, file.name)) names.push_back(file.name);
  }
  std::sort(names.begin(), names.end());
  return listed_keys(names);
}

std::string instead_of_file(const fs::path& file, const std::string& metadata_name) {
  const fs::path parent = parent_of(file);
  return holds_checkpoint(parent, metadata_name) ? ". The checkpoint is '" + parent.string() + "'" : "";
}

// The opening of a prefix in a bucket does not tell whether an object is below it.
bool is_empty_prefix(const fs::path& directory) {
  if (!is_bucket_url(directory)) return false;
  const auto found = storage::directories_in(directory);
  return found && !*found;
}

}  // namespace

bool means_no_checkpoint(const Error& error, const fs::path& directory, const std::string& metadata_name) {
  if (error.error_number() == ENOENT && error.file() == metadata_name) return true;
  const bool is_missing = error.error_number() == ENOENT || error.error_number() == ENOTDIR;
  return is_missing && error.file() == directory.string();
}

Error missing_checkpoint(const Error& error, const fs::path& directory, const std::string& metadata_name) {
  const std::string none = "no checkpoint in '" + directory.string() + "'";
  const auto not_found = [&](std::string text, const std::string& file) {
    return Error(ErrorCode::kNotFound, std::move(text)).file(file).error_number(error.error_number());
  };
  if (error.error_number() == ENOTDIR) {
    const std::string instead = instead_of_file(directory, metadata_name);
    const std::string known = instead.empty() ? ", nor a file of torch.save, nor named *.safetensors" : "";
    return not_found(none + ": it is not a directory" + known + instead, directory.string());
  }
  if (is_empty_prefix(directory)) {
    return not_found(none + ": no object is below this prefix" + beside(directory, metadata_name), directory.string());
  }
  if (error.file() != metadata_name) {
    return not_found(none + ": there is no such directory" + beside(directory, metadata_name), directory.string());
  }
  const std::vector<fs::path> directories = directories_in(directory);
  const std::string found = checkpoints_among(directories, metadata_name);
  if (!found.empty()) {
    return not_found(none + " (no " + metadata_name + "), but directories in it hold one", metadata_name).actual(found);
  }
  if (const std::string files = torch_files_in(directory); !files.empty()) {
    return not_found(none + " (no " + metadata_name + "). It holds files of torch.save: " + files +
                         ". Open one file by its name; or convert each file to safetensors, in one new directory, and "
                         "open this directory",
                     metadata_name);
  }
  const bool has_save = std::any_of(directories.begin(), directories.end(), is_private_folder);
  const std::string_view save = has_save ? ". A save into it has not been committed" : "";
  return not_found(none + " (no " + metadata_name + ")" + std::string(save), metadata_name);
}

}  // namespace cairn::checkpointer
