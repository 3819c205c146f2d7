// Outcome: what one process tells others of a step: the bytes that it has for them, or why it failed, with all that an
// Error holds.
//
// The coding stays within one job, whose processes run the same Cairn, but it also lies in the marks of a save, which
// are files that another user may have planted. Everything in it is plain data, and what is read is checked.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace cairn::manifest {

// Exception records that would make an outcome longer than this are left out of it.
inline constexpr std::size_t kExceptionsBytesMax = std::size_t{1} << 20;
// A record with more frames is left out of an outcome, and refused by the decoder.
inline constexpr std::size_t kExceptionFramesMax = 64;

std::string encode_outcome(const Result<std::string>& outcome);

// The outcome that came from elsewhere: its bytes, or its error. kCorrupt if the message is none of ours.
Result<std::string> decode_outcome(std::string_view message);

}  // namespace cairn::manifest
