#include "commit/dcp_names.h"

#include <cairn/catalog.h>

#include <cstddef>
#include <string>

namespace cairn::commit {
namespace {

__extension__ using UInt128 = unsigned __int128;

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

std::optional<SaveId> save_id_in_name(std::string_view name) {
  constexpr std::size_t kIdDigits = 39;  // of to_decimal()
  if (!is_data_file_name(name)) return std::nullopt;
  name.remove_suffix(kDataFileSuffix.size());
  name.remove_prefix(name.rfind('_') + 1);
  if (name.size() <= kIdDigits) return std::nullopt;
  UInt128 number = 0;
  for (const char digit : name.substr(0, kIdDigits)) number = 10 * number + static_cast<unsigned>(digit - '0');
  const SaveId id{static_cast<std::uint64_t>(number >> 64), static_cast<std::uint64_t>(number)};
  return to_decimal(id) == name.substr(0, kIdDigits) ? std::optional(id) : std::nullopt;
}

bool is_dcp_file_name(std::string_view name) { return is_metadata_name(name) || is_data_file_name(name); }

}  // namespace cairn::commit
