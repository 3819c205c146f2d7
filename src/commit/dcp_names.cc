#include "commit/dcp_names.h"

#include <cairn/catalog.h>

#include <cstddef>
#include <string>

namespace cairn::commit {
namespace {

constexpr std::string_view kRankPrefix = "__";

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

bool is_metadata_name(std::string_view name) {
  return name == kMetadataName || (name.starts_with(kRankPrefix) && name.ends_with(kMetadataName));
}

bool is_data_file_name(std::string_view name) {
  if (!name.starts_with(kRankPrefix) || !name.ends_with(kDataFileSuffix)) return false;
  name.remove_prefix(kRankPrefix.size());
  name.remove_suffix(kDataFileSuffix.size());
  const std::size_t between = name.find('_');
  return between != std::string_view::npos && is_number(name.substr(0, between)) && is_number(name.substr(between + 1));
}

bool is_data_file_of_rank(std::string_view name, std::uint32_t rank) {
  return name.starts_with(std::string(kRankPrefix) + std::to_string(rank) + "_") && name.ends_with(kDataFileSuffix);
}

bool is_dcp_file_name(std::string_view name) { return is_metadata_name(name) || is_data_file_name(name); }

}  // namespace cairn::commit
