// Durations as a user writes them.
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

namespace cairn::cli {

// "90s", "30m", "12h", "7d" and "2w". Nullopt for other texts, also for a number without a unit, and for 0.
std::optional<std::chrono::seconds> duration_of(std::string_view text);

}  // namespace cairn::cli
