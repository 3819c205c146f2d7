// The Python modules of the classes in `.metadata`.
#pragma once

#include <string_view>

namespace cairn::dcp {

inline constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
inline constexpr std::string_view kFilesystemModule = "torch.distributed.checkpoint.filesystem";

}  // namespace cairn::dcp
