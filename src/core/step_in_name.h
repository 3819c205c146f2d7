// step_in_name: the number of the training step in the name of a checkpoint's directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace cairn {

// Names with longer numbers are no steps: they may be times or hashes.
inline constexpr std::uint64_t kStepInNameMax = 999'999'999'999'999'999;

// The last number in the name: 120 of `step-120`. Nullopt if the name holds no number, or a last number of over 18
// digits.
std::optional<std::uint64_t> step_in_name(const std::filesystem::path& directory);
// Of the last name in a path, without its slashes.
std::optional<std::uint64_t> last_number_of(std::string_view name);

}  // namespace cairn
