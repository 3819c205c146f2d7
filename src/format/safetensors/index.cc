#include "format/safetensors/index.h"

#include "core/seeded_hash.h"
#include "format/json/json_reader.h"
#include "format/json/json_string.h"
#include "format/safetensors/checksums.h"
#include "format/safetensors/file_set.h"

#include <algorithm>
#include <optional>
#include <unordered_set>

namespace cairn::safetensors {
namespace {

constexpr std::string_view kTotalSizeName = "total_size";

// The path without its parts "." and without empty parts, which a file system ignores too. An absolute path stays
// absolute, and a path that ends with a slash keeps the slash: neither is the name of a file of the model.
std::string normal_path(std::string_view path) {
  std::string normal(path.starts_with('/') ? "/" : "");
  const bool ends_with_slash = path.ends_with('/');
  while (!path.empty()) {
    const std::size_t end = std::min(path.find('/'), path.size());
    const std::string_view part = path.substr(0, end);
    path.remove_prefix(std::min(end + 1, path.size()));
    if (part.empty() || part == ".") continue;
    if (!normal.empty() && normal.back() != '/') normal.push_back('/');
    normal += part;
  }
  if (ends_with_slash && !normal.ends_with('/')) normal.push_back('/');
  return normal;
}

Result<void> read_files(json::JsonReader& reader, Index& index) {
  CAIRN_TRY(reader.begin_object());
  std::unordered_set<std::string, SeededHash> names;
  while (true) {
    CAIRN_TRY_ASSIGN(std::optional<std::string> name, reader.next_name());
    if (!name) return {};
    if (!names.insert(*name).second) return reader.damaged("each tensor once").key(*name);
    CAIRN_TRY_ASSIGN(const std::string file, reader.read_string());
    index.files.emplace_back(*std::move(name), normal_path(file));
  }
}

// Of "metadata", whose text is one JSON value.
Result<void> read_metadata(std::string_view text, std::uint64_t offset, Index& index) {
  if (!text.starts_with('{') || !index.metadata.empty()) return {};
  json::JsonReader reader(text, offset);
  reader.allow_non_finite();
  CAIRN_TRY(reader.begin_object());
  while (true) {
    CAIRN_TRY_ASSIGN(std::optional<std::string> name, reader.next_name());
    if (!name) return {};
    CAIRN_TRY_ASSIGN(const std::string_view value, reader.read_value_text());
    if (*name != kTotalSizeName) index.metadata.emplace_back(*std::move(name), std::string(value));
  }
}

}  // namespace

Result<Index> read_index(std::string_view text) {
  json::JsonReader reader(text, 0);
  reader.allow_non_finite();  // Python's json writes these
  Index index;
  bool has_files = false;
  CAIRN_TRY(reader.begin_object());
  while (true) {
    CAIRN_TRY_ASSIGN(const std::optional<std::string> name, reader.next_name());
    if (!name) break;
    if (*name == kSaveIdName && index.save_id.empty()) {
      CAIRN_TRY_ASSIGN(index.save_id, reader.read_string());
      continue;
    }
    if (*name == "metadata") {
      CAIRN_TRY_ASSIGN(const std::string_view metadata, reader.read_value_text());
      CAIRN_TRY(read_metadata(metadata, reader.offset() - metadata.size(), index));
      continue;
    }
    if (*name != "weight_map") {
      CAIRN_TRY(reader.skip_value());
      continue;
    }
    if (has_files) return reader.damaged("weight_map once");
    CAIRN_TRY(read_files(reader, index));
    has_files = true;
  }
  CAIRN_TRY(reader.end());
  if (!has_files) return reader.damaged("a member weight_map");
  return index;
}

Result<std::string> render_index(const Index& index, std::uint64_t tensor_bytes) {
  std::string out =
      "{\n  \"metadata\": {\n    \"" + std::string(kTotalSizeName) + "\": " + std::to_string(tensor_bytes);
  for (const auto& [name, value] : index.metadata) {
    out += ",\n    ";
    CAIRN_TRY(json::append_json_string(out, name));
    out += ": " + value;
  }
  out += "\n  },\n";
  if (!index.save_id.empty()) {
    out += "  \"" + std::string(kSaveIdName) + "\": ";
    CAIRN_TRY(json::append_json_string(out, index.save_id));
    out += ",\n";
  }
  out += "  \"weight_map\": {";
  bool is_first = true;
  for (const auto& [name, file] : index.files) {
    out += is_first ? "\n    " : ",\n    ";
    is_first = false;
    CAIRN_TRY(json::append_json_string(out, name));
    out += ": ";
    CAIRN_TRY(json::append_json_string(out, file));
  }
  out += is_first ? "}\n}\n" : "\n  }\n}\n";
  return out;
}

}  // namespace cairn::safetensors
