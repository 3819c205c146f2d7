// Outcome: what a command has to say, and the exit code that says it to a script.
#pragma once

#include <cairn/error.h>

#include <string>

namespace cairn::cli {

// The whole list. Scripts rely on it.
enum class ExitCode : int {
  kOk = 0,
  kCheckFailed = 1,  // `verify` found something wrong, or no key matches a pattern of `inspect`
  kUsage = 2,        // the command line makes no sense
  kUnreadable = 3,   // no checkpoint there, or the system or its metadata keep us from reading it
};

// Commands print nothing: main does.
struct Outcome {
  std::string data;      // for stdout
  std::string messages;  // for stderr
  ExitCode exit_code = ExitCode::kOk;
};

// "cairn: " and the whole story of the error, made printable.
std::string message_of(const Error& error);

}  // namespace cairn::cli
