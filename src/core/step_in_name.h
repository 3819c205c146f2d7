// step_in_name: the number of the training step in the name of a checkpoint's directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace cairn {

// Names with longer numbers are no steps: they may be times or hashes.
inline constexpr std::uint64_t kStepInNameMax = 999'999'999'999'999'999;

// The number after the last "step" or "steps" in the name, of any case, with at most one of the characters -_=. or a
// space between: 1200 of `epoch=3-step=1200-v1.ckpt`. Fractions are no steps: 1200 also of
// `step=1200-loss_step=0.25.ckpt`. In a name without such a number, the last number: 120 of `checkpoint-120`; the
// version at the end of Lightning's `last-v1.ckpt` is none. Nullopt if the name holds no number, or one of over 18
// digits.
std::optional<std::uint64_t> step_in_name(const std::filesystem::path& directory);
// Of the last name in a path, without its slashes.
std::optional<std::uint64_t> step_of_name(std::string_view name);

}  // namespace cairn
