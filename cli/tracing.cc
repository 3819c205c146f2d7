#include "tracing.h"

#include <cairn/trace.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "printable.h"

namespace cairn::cli {
namespace {

// Removes the file again if it can't be written.
Result<void> write_new(const std::filesystem::path& path, std::string_view text, bool overwrite) {
  constexpr mode_t kMode = 0666;
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (overwrite ? O_TRUNC : O_EXCL);
  const int fd = ::open(path.c_str(), flags, kMode);
  if (fd < 0) return Error::from_errno(errno, "can't make the file").file(path.string());
  int failure = 0;
  while (!text.empty() && failure == 0) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      failure = errno;
    }
  }
  if (::close(fd) != 0 && failure == 0) failure = errno;
  if (failure == 0) return {};
  (void)::unlink(path.c_str());
  return Error::from_errno(failure, "can't write the file").file(path.string());
}

}  // namespace

Outcome merge_traces(const std::filesystem::path& directory, const std::filesystem::path& output, bool overwrite) {
  Result<MergedTrace> merged = merge_trace(directory);
  if (!merged) return {{}, message_of(merged.error()), ExitCode::kUnreadable};
  Outcome outcome;
  for (const std::string& warning : merged->warnings) outcome.messages += "cairn: " + printable(warning) + "\n";
  if (output.empty()) {
    outcome.data = std::move(merged->json);
    return outcome;
  }
  if (const Result<void> written = write_new(output, merged->json, overwrite); !written) {
    outcome.messages += message_of(written.error());
    outcome.exit_code = written.error().error_number() == EEXIST ? ExitCode::kUsage : ExitCode::kUnreadable;
    return outcome;
  }
  outcome.data = fmt::format("{}: {} events of {} processes\n", printable(output.string()), merged->event_count,
                             merged->file_count);
  return outcome;
}

}  // namespace cairn::cli
