// Where the program `cairn-writer` is.
#pragma once

#include <cairn/result.h>

#include <string>

namespace cairn::writer {

// `given` if it is not empty; else the environment's CAIRN_WRITER; else the first there is of: bin/cairn-writer and
// cairn-writer beside the file that holds this code (a Python package, a build), the same beside the program that runs,
// and where an installation has it. kUnavailable, with all places that were looked at.
Result<std::string> find_writer_executable(const std::string& given);

}  // namespace cairn::writer
