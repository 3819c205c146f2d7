// DCP names: the names of the files of a DCP checkpoint.
#pragma once

#include <string_view>

namespace cairn::commit {

inline constexpr std::string_view kDataFileSuffix = ".distcp";

// `.metadata`, or the metadata of a rank that saved alone: `__R.metadata`, with any text for R.
bool is_metadata_name(std::string_view name);
// Whether `name` has the form of data_file_name(): `__R_N.distcp`, with numbers R and N.
bool is_data_file_name(std::string_view name);
// Either of the two. Beside such a file Cairn's readers never take a safetensors model for what the directory holds.
bool is_dcp_file_name(std::string_view name);

}  // namespace cairn::commit
