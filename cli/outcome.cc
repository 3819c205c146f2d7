#include "outcome.h"

#include <cairn/metadata_name.h>

#include "printable.h"

namespace cairn::cli {

ExitCode exit_code_of_copy(ErrorCode code) {
  switch (code) {
    case ErrorCode::kCorrupt:
    case ErrorCode::kUnsafe:
    case ErrorCode::kMissingKey: return ExitCode::kCheckFailed;
    case ErrorCode::kInvalidArgument: return ExitCode::kUsage;
    default: return ExitCode::kUnreadable;
  }
}

std::string message_of(const Error& error) { return "cairn: " + printable(error.what()) + "\n"; }

std::string damage_message(const Checkpoint& checkpoint) {
  const std::optional<std::string> damage = checkpoint.damage();
  return damage ? "cairn: warning: " + printable(*damage) + "\n" : std::string();
}

Outcome unopened(const Error& error, const std::filesystem::path& directory) {
  Outcome outcome{{}, message_of(error), ExitCode::kUnreadable};
  if (error.code() != ErrorCode::kNotFound || error.file() != std::string(kMetadataName)) return outcome;
  const std::string place = printable(directory.string());
  // open() names the checkpoints in the directory's directories, if there are any, as found.
  outcome.messages += error.actual() ? "Try 'cairn ls " + place + "': the command lists the checkpoints in it.\n"
                                     : "Try 'cairn status " + place + "': the command shows saves in flight.\n";
  return outcome;
}

}  // namespace cairn::cli
