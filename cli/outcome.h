// Outcome: the output of a command, and the exit code for scripts.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/result.h>

#include <filesystem>
#include <string>

namespace cairn::cli {

// The complete list. Scripts rely on the values.
enum class ExitCode : int {
  kOk = 0,
  // `verify` found a problem, `doctor` an obstacle to saves, `diff` a difference, `convert` and `cat` damage in their
  // source; or no key matches
  // (`inspect`, `cat`, `convert`).
  kCheckFailed = 1,
  kUsage = 2,        // the command line is not valid, or the target of `convert` or `cat` exists
  kDiffTrouble = 2,  // any failure of `diff`: the code of diff(1)
  kUnreadable = 3,   // no checkpoint, or the system or damage prevents reading or writing
};

// main prints the outcome. A command prints only the beginning of long data itself, as the data come.
struct Outcome {
  std::string data;      // for stdout
  std::string messages;  // for stderr
  ExitCode exit_code = ExitCode::kOk;
  int signal = 0;  // not 0: the signal that ended the command; main ends the process by it, whatever the exit code
};

// Of a failed `convert` or `cat`.
ExitCode exit_code_of_copy(const Error& error);

// The error's whole text, made printable, with the tool's names of options (cairn/result.h).
std::string error_text(const Error& error);

// "cairn: " and error_text(), on a line.
std::string message_of(const Error& error);

// The message about a damaged part of the metadata that another part has replaced; empty without such damage.
std::string damage_message(const Checkpoint& checkpoint);

// The outcome of a command on `directory`, whose checkpoint could not be opened: the message of the error, and the next
// command for a directory without a checkpoint.
Outcome unopened(const Error& error, const std::filesystem::path& directory);

}  // namespace cairn::cli
