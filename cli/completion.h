// `cairn completion`: scripts that complete the words of the tool in a shell.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace cairn::cli {

// Completes commands, options and directories. `shell` is "bash", "zsh" or "fish". The script lists the commands and
// options of `tool`, and fits this version of the tool.
std::string completion_script(const CLI::App& tool, const std::string& shell);

}  // namespace cairn::cli
