// DCP names: the names of the files of a DCP checkpoint.
#pragma once

#include <cairn/catalog.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn::commit {

inline constexpr std::string_view kDataFileSuffix = ".distcp";

// `.metadata`, or the metadata of a rank that saved alone: `__R.metadata`, with any text for R.
bool is_metadata_name(std::string_view name);
// Whether `name` has the form of data_file_name(): `__R_N.distcp`, with numbers R and N.
bool is_data_file_name(std::string_view name);
// Whether `name` has the form of a data file of this rank: `__R_*.distcp`.
bool is_data_file_of_rank(std::string_view name, std::uint32_t rank);
// The save whose id is in the name of a data file (save_ticket.h); nullopt for other names, and for the names of a
// first save.
std::optional<SaveId> save_id_in_name(std::string_view name);
// The name of a metadata file or of a data file. Beside such a file Cairn's readers never take a safetensors model for
// what the directory holds.
bool is_dcp_file_name(std::string_view name);

}  // namespace cairn::commit
