#include "format/safetensors/file_set.h"

#include "core/whole_number.h"

namespace cairn::safetensors {
namespace {

constexpr std::string_view kAlone = "alone";
constexpr std::string_view kIndexed = "index of ";
constexpr std::string_view kShards = "shards in ";
constexpr std::string_view kFiles = " files";

std::optional<std::uint32_t> count_between(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix) || !text.ends_with(kFiles)) return std::nullopt;
  text.remove_prefix(prefix.size());
  if (text.size() < kFiles.size()) return std::nullopt;
  text.remove_suffix(kFiles.size());
  return whole_number<std::uint32_t>(text);
}

}  // namespace

std::string render_file_set(const FileSet& set) {
  if (set.kind == FileSet::Kind::kAlone) return std::string(kAlone);
  const std::string_view prefix = set.kind == FileSet::Kind::kIndexed ? kIndexed : kShards;
  return std::string(prefix) + std::to_string(set.file_count) + std::string(kFiles);
}

std::optional<FileSet> read_file_set(std::string_view text) {
  if (text == kAlone) return FileSet{FileSet::Kind::kAlone, 1};
  if (const auto count = count_between(text, kIndexed)) return FileSet{FileSet::Kind::kIndexed, *count};
  if (const auto count = count_between(text, kShards)) return FileSet{FileSet::Kind::kShards, *count};
  return std::nullopt;
}

}  // namespace cairn::safetensors
