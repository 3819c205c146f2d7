// `cairn help --man`: the manual page of the tool, with the text of `--help`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace cairn::cli {

// The commands, arguments, options and footers of `tool`, for man(1), in the macros of the package man.
std::string manual_of(const CLI::App& tool);

}  // namespace cairn::cli
