// `cairn bench`: save and load of a synthetic state, beside the raw device.
#pragma once

#include <filesystem>
#include <string>

#include "outcome.h"

namespace cairn::cli {

// `size`: of the state, as "500MiB"; empty: the default.
Outcome measure(const std::filesystem::path& directory, const std::string& size, bool json);

}  // namespace cairn::cli
