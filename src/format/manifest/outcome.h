// Outcome: the result of a step, sent from one process to the others: the step's bytes, or the Error with fields,
// causes and exception records.
//
// The processes of one job exchange outcomes and run one version of Cairn. But a save's marks hold outcomes too, and a
// mark is a file, possibly planted by another user. An outcome is plain data, and the decoder checks every field.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace cairn::manifest {

// The most bytes of exception records in an outcome. encode_outcome() leaves out a record for which the bytes do not
// suffice.
inline constexpr std::size_t kExceptionsBytesMax = std::size_t{1} << 20;
// The most frames of an exception record. encode_outcome() leaves out a record with more frames, and the decoder
// refuses a message with more.
inline constexpr std::size_t kExceptionFramesMax = 64;

std::string encode_outcome(const Result<std::string>& outcome);

// The outcome in a message from another process: the bytes, or the error. kCorrupt if the message is not an encoded
// outcome.
Result<std::string> decode_outcome(std::string_view message);

}  // namespace cairn::manifest
