// The path of the program `cairn-writer`.
#pragma once

#include <cairn/result.h>

#include <string>

namespace cairn::writer {

// Returns `given` if not empty; otherwise the value of the environment variable CAIRN_WRITER, if set; otherwise the
// first existing file of: bin/cairn-writer and cairn-writer beside the file with this code (a Python package, a build),
// bin/cairn-writer and cairn-writer beside the running program, and the place of an installation: beside the folder of
// the program, and where find_package(cairn) of the program's build found the writer. kUnavailable, with all searched
// places, if there is none.
Result<std::string> find_writer_executable(const std::string& given);

}  // namespace cairn::writer
