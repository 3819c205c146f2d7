// Sizes as a user writes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn::cli {

// Bytes: "5GB" and "5gb" are 5 * 10^9, "1.5GiB" and "1.5gib" are 1.5 * 2^30. Nullopt for other texts, and for 0.
std::optional<std::uint64_t> bytes_of(std::string_view text);

// Of ASCII letters.
std::string lower_case(std::string text);

}  // namespace cairn::cli
