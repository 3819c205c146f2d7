#include "outcome.h"

#include <cairn/catalog.h>

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "printable.h"

namespace cairn::cli {

ExitCode exit_code_of_copy(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kCorrupt:
    case ErrorCode::kUnsafe:
    case ErrorCode::kMissingKey: return ExitCode::kCheckFailed;
    // With an errno the system has refused the target.
    case ErrorCode::kInvalidArgument: return error.error_number() == 0 ? ExitCode::kUsage : ExitCode::kUnreadable;
    default: return ExitCode::kUnreadable;
  }
}

std::string error_text(const Error& error) {
  constexpr std::string_view kMark = "(option ";
  std::string text = error.what();
  for (std::size_t at = text.find(kMark); at != std::string::npos; at = text.find(kMark, at)) {
    const std::size_t end = text.find(')', at);
    if (end == std::string::npos) break;
    std::string name = text.substr(at + kMark.size(), end - at - kMark.size());
    std::replace(name.begin(), name.end(), '_', '-');
    if (name == "renames") name = "rename";  // the tool's option takes one of them
    text.replace(at, end - at, "(--" + name);
  }
  return printable(text);
}

std::string message_of(const Error& error) { return "cairn: " + error_text(error) + "\n"; }

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
