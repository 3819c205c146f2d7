// The standard streams of the process.
#pragma once

namespace cairn::cli {

// Opens /dev/null in place of each standard stream that the caller has closed. Without this the next file that the tool
// opens would be that stream, and would get the output of the tool. False if /dev/null can't be opened.
bool open_standard_streams();

}  // namespace cairn::cli
