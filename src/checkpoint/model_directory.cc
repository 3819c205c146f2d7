#include "checkpoint/model_directory.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "checkpoint/listed_keys.h"
#include "commit/model/model_files.h"
#include "core/byte_source.h"
#include "core/lfs_pointer.h"
#include "core/whole_number.h"

namespace cairn::checkpointer::model_directory {
namespace {

constexpr std::uint64_t kIndexBytesMax = std::uint64_t{1} << 30;
constexpr std::string_view kIndexEnd = ".json";
constexpr std::string_view kIndexMiddle = ".safetensors.index";
constexpr std::string_view kShardPrefix = "shard-";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The name of one of several files: `before`, the number, "-of-", the count, `after`.
struct NumberedName {
  std::string_view before;
  std::uint32_t number = 0;
  std::string_view digits;  // of the number
  std::string_view count_digits;
  std::uint32_t count = 0;
  std::string_view after;
};

std::optional<NumberedName> numbered_name(std::string_view name) {
  constexpr std::string_view kOf = "-of-";
  const std::size_t of = name.rfind(kOf);
  if (of == std::string_view::npos) return std::nullopt;
  NumberedName numbered;
  std::size_t begin = of;
  while (begin > 0 && is_digit(name[begin - 1])) --begin;
  std::size_t end = of + kOf.size();
  while (end < name.size() && is_digit(name[end])) ++end;
  numbered.digits = name.substr(begin, of - begin);
  numbered.count_digits = name.substr(of + kOf.size(), end - of - kOf.size());
  const auto number = whole_number<std::uint32_t>(numbered.digits);
  const auto count = whole_number<std::uint32_t>(numbered.count_digits);
  if (!number || !count) return std::nullopt;
  numbered.before = name.substr(0, begin);
  numbered.number = *number;
  numbered.count = *count;
  numbered.after = name.substr(end);
  // torch's file of one rank: "shard-00001-model-00001-of-00002.safetensors". Any rank may have the file of a number.
  if (numbered.before.starts_with(kShardPrefix)) {
    const std::size_t rest = numbered.before.find_first_not_of("0123456789", kShardPrefix.size());
    if (rest != std::string_view::npos) numbered.before.remove_prefix(rest + (numbered.before[rest] == '-' ? 1 : 0));
  }
  return numbered;
}

// The path of a file that the index names: inside the directory, and the name of a file.
Result<void> check_path(std::string_view path) {
  if (!storage::check_name(path)) return Error(ErrorCode::kUnsafe, "the index names a file outside the directory");
  if (path.ends_with('/')) return Error(ErrorCode::kCorrupt, "the index names a folder as a file");
  return {};
}

// Beside `model.safetensors` only the files with the name of a model's file count.
void leave_out_others(std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), commit::kSingleModelName) == names.end()) return;
  std::erase_if(names, [](const std::string& name) { return !commit::is_model_file_name(name); });
}

Result<ModelFiles> files_of_index(const std::string& index_name, std::string_view text) {
  const MemorySource source(std::as_bytes(std::span(text)));
  if (std::optional<Error> pointer = lfs_pointer_error(source)) return *std::move(pointer);
  CAIRN_TRY_ASSIGN(safetensors::Index index, safetensors::read_index(text));
  ModelFiles files;
  for (const auto& [key, name] : index.files) {
    if (auto checked = check_path(name); !checked) return std::move(checked).error().key(key).actual(name);
    files.names.push_back(name);
  }
  std::sort(files.names.begin(), files.names.end());
  files.names.erase(std::unique(files.names.begin(), files.names.end()), files.names.end());
  files.index = std::move(index);
  files.index_name = index_name;
  return files;
}

// The index of another name than the model's; empty if there is none. An index without a variant comes first.
Result<std::string> other_index(std::vector<std::string> names) {
  const auto has_variant = [](const std::string& name) {
    return !name.ends_with(std::string(kIndexMiddle) + std::string(kIndexEnd));
  };
  if (!std::all_of(names.begin(), names.end(), has_variant)) std::erase_if(names, has_variant);
  if (names.empty()) return std::string();
  if (names.size() == 1) return std::move(names.front());
  std::sort(names.begin(), names.end());
  return Error(ErrorCode::kCorrupt,
               "the directory holds several indexes, and nothing shows which is the model's; open one file alone")
      .actual(listed_keys(names));
}

}  // namespace

bool has_model_suffix(std::string_view name) {
  if (name.size() < commit::kModelSuffix.size()) return false;
  const std::string_view end = name.substr(name.size() - commit::kModelSuffix.size());
  return std::equal(end.begin(), end.end(), commit::kModelSuffix.begin(),
                    [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a | 0x20 : a) == b; });
}

bool is_index_name(std::string_view name) {
  return name.ends_with(kIndexEnd) && name.find(kIndexMiddle) != std::string_view::npos &&
         name.substr(name.rfind(kIndexMiddle) + kIndexMiddle.size()).starts_with('.');
}

Result<ModelFiles> files_of_model(const storage::Storage& storage) {
  std::string index_name(safetensors::kIndexName);
  Result<std::string> text = storage::read_small(storage, index_name, kIndexBytesMax, true);
  // Any other error than ENOENT says that an index is there, or may be there.
  if (!text && text.error().error_number() != ENOENT) return std::move(text).error();
  if (!text) {
    CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> listed, storage.list());
    ModelFiles files;
    std::vector<std::string> indexes;
    for (const storage::ListedFile& file : listed) {
      if (file.is_folder) continue;
      if (has_model_suffix(file.name)) files.names.push_back(file.name);
      if (is_index_name(file.name)) indexes.push_back(file.name);
    }
    std::sort(files.names.begin(), files.names.end());
    const bool has_single = std::binary_search(files.names.begin(), files.names.end(), commit::kSingleModelName);
    CAIRN_TRY_ASSIGN(index_name, has_single ? std::string() : other_index(std::move(indexes)));
    if (index_name.empty()) {
      leave_out_others(files.names);
      return files;
    }
    text = storage::read_small(storage, index_name, kIndexBytesMax, true);
    if (!text) return std::move(text).error();
  }
  Result<ModelFiles> files = files_of_index(index_name, *text);
  if (!files) return std::move(files).error().file(index_name);
  return files;
}

std::optional<std::uint32_t> file_count_in(std::string_view name) {
  const std::optional<NumberedName> numbered = numbered_name(name);
  return numbered ? std::optional(numbered->count) : std::nullopt;
}

std::optional<LackingNumber> lacking_number(const std::vector<std::string>& names) {
  struct Group {
    NumberedName first;
    std::string_view name;
    std::set<std::uint32_t> numbers;
  };
  std::map<std::string, Group> groups;
  for (const std::string& name : names) {
    const std::optional<NumberedName> numbered = numbered_name(name);
    if (!numbered) continue;
    std::string key(numbered->before);
    key.append("/").append(numbered->count_digits).append("/").append(numbered->after);
    Group& group = groups.try_emplace(std::move(key), Group{*numbered, name, {}}).first->second;
    group.numbers.insert(numbered->number);
  }
  for (const auto& [key, group] : groups) {
    const std::uint32_t first = *group.numbers.begin() == 0 ? 0 : 1;  // some programs count from 0
    std::uint32_t missing = first;
    for (const std::uint32_t number : group.numbers) missing += number == missing ? 1 : 0;
    if (missing - first >= group.first.count) continue;
    std::string digits = std::to_string(missing);
    digits.insert(0, group.first.digits.size() - std::min(group.first.digits.size(), digits.size()), '0');
    LackingNumber lacking;
    lacking.name.append(group.first.before).append(digits).append("-of-").append(group.first.count_digits);
    lacking.name.append(group.first.after);
    lacking.known = group.name;
    lacking.count = group.first.count;
    lacking.found = group.numbers.size();
    return lacking;
  }
  return std::nullopt;
}

}  // namespace cairn::checkpointer::model_directory
