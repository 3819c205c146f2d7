// A pin: a file in the directory of a checkpoint that protects the checkpoint from removal.
#pragma once

#include <cairn/result.h>

#include <optional>
#include <string>
#include <string_view>

#include "storage/storage.h"

namespace cairn::commit {

inline constexpr std::string_view kPinName = ".cairn-pinned";

// Under the directory's lock: a removal that has begun ends first, and finds the pin otherwise. kNotFound without a
// checkpoint. An existing pin stays as it is. The pin is durable when the call returns.
Result<void> pin(storage::Storage& storage, std::string_view note);
// Returns whether there was a pin.
Result<bool> unpin(storage::Storage& storage);
// The note of the pin; nullopt without a pin. A pin that can't be read is an error, never no pin.
Result<std::optional<std::string>> note_of_pin(const storage::Storage& storage);

// "pinned: for the evaluation"
std::string text_of_pin(const std::string& note);

}  // namespace cairn::commit
