#include "format/safetensors/sharding_info.h"

#include "format/json/json_reader.h"
#include "format/json/json_string.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace cairn::safetensors {
namespace {

Result<Extents> read_offsets(json::JsonReader& reader) {
  std::vector<std::int64_t> offsets;
  CAIRN_TRY(reader.begin_array());
  while (true) {
    CAIRN_TRY_ASSIGN(const bool follows, reader.next_element());
    if (!follows) return Extents(offsets);
    CAIRN_TRY_ASSIGN(const std::uint64_t offset, reader.read_unsigned());
    if (offset > static_cast<std::uint64_t>(INT64_MAX) || offsets.size() == kDimensionsMax) {
      return reader.damaged("the offsets of a box");
    }
    offsets.push_back(static_cast<std::int64_t>(offset));
  }
}

Result<Extents> read_entry(json::JsonReader& reader) {
  std::optional<Extents> offsets;
  CAIRN_TRY(reader.begin_object());
  while (true) {
    CAIRN_TRY_ASSIGN(const std::optional<std::string> name, reader.next_name());
    if (!name) break;
    if (*name != "saved_offsets") {
      CAIRN_TRY(reader.skip_value());
      continue;
    }
    if (offsets) return reader.damaged("saved_offsets once");
    CAIRN_TRY_ASSIGN(offsets, read_offsets(reader));
  }
  if (!offsets) return reader.damaged("a member saved_offsets");
  return *std::move(offsets);
}

}  // namespace

Result<SavedOffsets> read_sharding_info(std::string_view text) {
  json::JsonReader reader(text, 0);
  SavedOffsets saved;
  CAIRN_TRY(reader.begin_object());
  while (true) {
    CAIRN_TRY_ASSIGN(std::optional<std::string> name, reader.next_name());
    if (!name) break;
    Result<Extents> offsets = read_entry(reader);
    if (!offsets) return std::move(offsets).error().key(*name);
    if (!saved.emplace(*name, *std::move(offsets)).second) return reader.damaged("each name once").key(*name);
  }
  CAIRN_TRY(reader.end());
  return saved;
}

Result<std::string> render_sharding_info(std::span<const std::pair<std::string_view, const Extents*>> tensors) {
  std::string out = "{";
  for (const auto& [name, offsets] : tensors) {
    if (out.size() > 1) out += ", ";
    CAIRN_TRY(json::append_json_string(out, name));
    out += ": {\"saved_offsets\": [";
    for (std::size_t i = 0; i < offsets->size(); ++i) {
      if (i != 0) out += ", ";
      out += std::to_string((*offsets)[i]);
    }
    out += "]}";
  }
  return out += "}";
}

}  // namespace cairn::safetensors
