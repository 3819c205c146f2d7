// The examples in `--help` and in the manual page.
#pragma once

#include <string_view>

namespace cairn::cli {

// Lines of examples of a command, each indented by two spaces; empty for an unknown command.
std::string_view examples_of(std::string_view command);

}  // namespace cairn::cli
