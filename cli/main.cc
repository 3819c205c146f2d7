// The tool `cairn`: looks at checkpoints. Data go to stdout, messages to stderr; the exit codes are in outcome.h.
#include <cairn/version.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include "inspection.h"
#include "listing.h"
#include "outcome.h"
#include "status.h"
#include "verification.h"

namespace {

using cairn::cli::ExitCode;
using cairn::cli::Outcome;

constexpr const char* kExitCodes =
    "Exit codes: 0 ok, 1 the check failed, 2 usage, 3 no checkpoint there, or it can't be read.";

struct Arguments {
  std::filesystem::path directory;
  bool json = false;
  bool follow_links = false;
};

Outcome usage(const CLI::App& tool, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) {  // --help or --version
    const bool is_version = dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr;
    if (is_version) return {std::string(error.what()) + "\n", {}, ExitCode::kOk};
    const auto commands = tool.get_subcommands();
    return {commands.empty() ? tool.help() : commands.front()->help(tool.get_name()), {}, ExitCode::kOk};
  }
  return {{}, std::string("cairn: ") + error.what() + "\nTry 'cairn --help'.\n", ExitCode::kUsage};
}

Outcome run(int count, const char* const* words) {
  CLI::App tool("Looks at checkpoints of Cairn and of torch.distributed.checkpoint.", "cairn");
  tool.footer(kExitCodes);
  tool.set_version_flag("--version", "cairn " + std::string(cairn::kVersion));
  tool.require_subcommand(1);
  Arguments arguments;
  const auto add_command = [&](const char* name, const char* description) {
    CLI::App* command = tool.add_subcommand(name, description);
    command->add_option("directory", arguments.directory, "the checkpoint")->required()->type_name("DIR");
    command->footer(kExitCodes);
    return command;
  };
  const CLI::App* ls = add_command("ls", "A line per key; of a folder of checkpoints, a line per checkpoint");
  CLI::App* inspect = add_command("inspect", "Tree of keys with dtype, shape, bytes, chunks, files; short values");
  inspect->add_flag("--json", arguments.json, "everything the metadata says, for programs");
  CLI::App* verify = add_command("verify", "Every byte against its checksum, every chunk against its tensor");
  verify->add_flag("--json", arguments.json, "the same for programs");
  verify->add_flag("--follow-links", arguments.follow_links, "data files may be symbolic links");
  CLI::App* status =
      add_command("status", "Saves under way or dead: whose, how far, and when they last gave a sign of life");
  status->add_flag("--json", arguments.json, "the same for programs");
  try {
    tool.parse(count, words);
  } catch (const CLI::ParseError& error) {
    return usage(tool, error);
  }
  if (ls->parsed()) return cairn::cli::list(arguments.directory);
  if (inspect->parsed()) return cairn::cli::inspect(arguments.directory, arguments.json);
  if (status->parsed()) return cairn::cli::status(arguments.directory, arguments.json);
  return cairn::cli::verify(arguments.directory, arguments.json, arguments.follow_links);
}

}  // namespace

int main(int count, char** words) {
  Outcome outcome;
  try {
    outcome = run(count, words);
  } catch (const std::exception& error) {  // out of memory, or our bug
    outcome = {{}, std::string("cairn: ") + error.what() + "\n", ExitCode::kUnreadable};
  }
  std::fwrite(outcome.data.data(), 1, outcome.data.size(), stdout);
  std::fwrite(outcome.messages.data(), 1, outcome.messages.size(), stderr);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fputs("cairn: stdout could not be written\n", stderr);
    return static_cast<int>(ExitCode::kUnreadable);
  }
  return static_cast<int>(outcome.exit_code);
}
