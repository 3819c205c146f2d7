// Outcome: what one process tells others of a step: the bytes that it has for them, or why it failed, with all that an
// Error holds.
//
// The coding stays within one job, whose processes run the same Cairn. What is read is checked all the same.
#pragma once

#include <cairn/result.h>

#include <string>
#include <string_view>

namespace cairn::manifest {

std::string encode_outcome(const Result<std::string>& outcome);

// The outcome that came from elsewhere: its bytes, or its error. kCorrupt if the message is none of ours.
Result<std::string> decode_outcome(std::string_view message);

}  // namespace cairn::manifest
