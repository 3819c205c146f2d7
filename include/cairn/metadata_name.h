// The name of the file whose rename commits a checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn {

inline constexpr std::string_view kMetadataName = ".metadata";

// `.metadata`; `__{rank}.metadata` for the checkpoint that a rank saved alone.
inline std::string metadata_name(std::optional<std::uint32_t> alone_as_rank) {
  return (alone_as_rank ? "__" + std::to_string(*alone_as_rank) : "") + std::string(kMetadataName);
}

}  // namespace cairn
