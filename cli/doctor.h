// `cairn doctor`: what the machine and a directory offer, and what Cairn uses of this.
#pragma once

#include <filesystem>

#include "outcome.h"

namespace cairn::cli {

Outcome examine(const std::filesystem::path& directory, bool json);

}  // namespace cairn::cli
