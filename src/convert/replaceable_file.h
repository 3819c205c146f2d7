// replaceable_file: which file a conversion may replace.
#pragma once

#include <cairn/result.h>

#include <filesystem>

#include "checkpoint/open_calls.h"

namespace cairn::checkpointer {

// Refuses a target whose bytes no conversion has written: kInvalidArgument unless the file is missing, empty, or begins
// like a file of torch.save or safetensors. A file that can't be read is refused with the error of the read.
Result<void> check_replaceable(const OpenDirectory& open_directory, const std::filesystem::path& target);

}  // namespace cairn::checkpointer
