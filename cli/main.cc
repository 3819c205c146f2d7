// The tool `cairn`: looks at checkpoints and converts them. Data go to stdout, messages to stderr; the exit codes
// are in outcome.h. A command that cleans up after SIGINT or SIGTERM ends by the signal, as the commands do that clean
// up nothing.
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "bench.h"
#include "cleaning.h"
#include "command_line.h"
#include "comparison.h"
#include "completion.h"
#include "conversion.h"
#include "doctor.h"
#include "inspection.h"
#include "key_content.h"
#include "listing.h"
#include "outcome.h"
#include "pinning.h"
#include "progress_bar.h"
#include "pruning.h"
#include "repairing.h"
#include "standard_streams.h"
#include "status.h"
#include "tracing.h"
#include "verification.h"
#include "watching.h"

namespace {

using cairn::cli::ExitCode;
using cairn::cli::Outcome;

Outcome carry_out(const cairn::cli::CommandLine& line, cairn::cli::ProgressBar& bar) {
  const cairn::cli::Arguments& given = line.arguments();
  if (line.command() == "ls") return cairn::cli::list(given.directory, given.json);
  if (line.command() == "inspect") {
    return cairn::cli::inspect(given.directory, {given.json, given.patterns, given.depth});
  }
  if (line.command() == "status") return cairn::cli::status(given.directory, given.json);
  if (line.command() == "watch") {
    return cairn::cli::watch(given.directory, {std::chrono::milliseconds(std::llround(given.interval_seconds * 1e3)),
                                               given.until_idle, given.json});
  }
  if (line.command() == "doctor") return cairn::cli::examine(given.directory, given.json);
  if (line.command() == "bench") return cairn::cli::measure(given.directory, given.bytes, given.json);
  if (line.command() == "diff") {
    return cairn::cli::compare(given.directory, given.other,
                               {given.tolerance, given.ignore_dtype, given.patterns, given.json, given.follow_links});
  }
  if (line.command() == "cat") {
    return cairn::cli::show_key(given.directory, given.key,
                                {given.npy, given.overwrite, given.json, given.follow_links});
  }
  if (line.command() == "verify") return cairn::cli::verify(given.directories, given.json, given.follow_links, bar);
  if (line.command() == "clean") return cairn::cli::clean(given.directory, given.dry_run, given.json);
  if (line.command() == "repair") {
    return cairn::cli::repair(given.directory, given.repairing, given.dry_run, given.json);
  }
  if (line.command() == "prune") {
    return cairn::cli::prune(given.directory, given.pruning, given.dry_run, given.json);
  }
  if (line.command() == "rm") return cairn::cli::remove(given.directories, given.dry_run, given.json);
  if (line.command() == "pin") return cairn::cli::pin(given.directories, given.note, given.json);
  if (line.command() == "unpin") return cairn::cli::unpin(given.directories, given.json);
  if (line.command() == "trace") return cairn::cli::merge_traces(given.directory, given.output, given.overwrite);
  if (line.command() == "convert") return cairn::cli::convert(given.directory, given.target, given.conversion);
  if (line.command() == "reshard") {
    cairn::cli::ConversionOptions options = given.conversion;
    options.to = "dcp";
    return cairn::cli::convert(given.directory, given.target, options);
  }
  return {cairn::cli::completion_script(line.tool(), given.shell), {}, ExitCode::kOk};
}

// Sets `command` to the name of the command.
Outcome run(const std::vector<std::string>& words, std::string& command) {
  using cairn::cli::ProgressBar;
  cairn::cli::CommandLine line;
  if (auto outcome = line.parse(words)) return *std::move(outcome);
  command = line.command();
  ProgressBar bar(line.arguments().quiet ? ProgressBar::Wish::kQuiet : ProgressBar::Wish::kShown);
  return carry_out(line, bar);
}

// Of a failure outside the command: out of memory, a closed stdout.
ExitCode failure_of(const std::string& command) {
  return command == "diff" ? ExitCode::kDiffTrouble : ExitCode::kUnreadable;
}

}  // namespace

int main(int count, char** words) {
  if (!cairn::cli::open_standard_streams()) return static_cast<int>(ExitCode::kUnreadable);
  std::string command;
  Outcome outcome;
  try {
    outcome = run({words, words + count}, command);
  } catch (const std::exception& error) {  // out of memory, or a bug of the tool
    outcome = {{}, std::string("cairn: ") + error.what() + "\n", failure_of(command)};
  }
  std::fwrite(outcome.data.data(), 1, outcome.data.size(), stdout);
  std::fwrite(outcome.messages.data(), 1, outcome.messages.size(), stderr);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fputs("cairn: stdout could not be written\n", stderr);
    return static_cast<int>(failure_of(command));
  }
  if (outcome.signal != 0) {
    (void)std::signal(outcome.signal, SIG_DFL);
    (void)std::raise(outcome.signal);
  }
  return static_cast<int>(outcome.exit_code);
}
