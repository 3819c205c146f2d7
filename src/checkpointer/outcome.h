// Outcome: what a rank tells the others of a step: the bytes that it has for them, or why it failed.
//
// The coding stays within one job: ranks of one save run the same Cairn. What is read is checked all the same.
#pragma once

#include <cairn/result.h>

#include <string>
#include <string_view>

namespace cairn::checkpointer {

std::string encode_outcome(const Result<std::string>& outcome);

// The outcome that came from another rank: its bytes, or its error. kCorrupt if the message is none of ours.
Result<std::string> decode_outcome(std::string_view message);

}  // namespace cairn::checkpointer
