#include "pinning.h"

#include <cairn/retention.h>
#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

#include "json_writer.h"
#include "printable.h"

namespace cairn::cli {
namespace {

namespace fs = std::filesystem;

// What `pin` and `unpin` have done.
struct Pin {
  fs::path directory;
  bool is_pinned = false;
  bool was_pinned = false;
  std::optional<std::string> note;
};

std::string line_of(const Pin& pin) {
  const std::string note = pin.note && !pin.note->empty() ? ": " + printable(*pin.note) : "";
  const std::string_view state = pin.is_pinned ? (pin.was_pinned ? "already pinned" : "pinned")
                                               : (pin.was_pinned ? "no longer pinned" : "was not pinned");
  return fmt::format("{}: {}{}\n", printable(pin.directory.string()), state, note);
}

Result<Pin> pinned(const fs::path& directory, const std::string& note) {
  const Result<std::optional<std::string>> before = read_pin(directory);
  if (!before) return before.error();
  if (const Result<void> set = cairn::pin(directory, note); !set) return set.error();
  Result<std::optional<std::string>> after = read_pin(directory);
  if (!after) return std::move(after).error();
  return Pin{directory, after->has_value(), before->has_value(), *std::move(after)};
}

Result<Pin> unpinned(const fs::path& directory) {
  const Result<bool> was_pinned = cairn::unpin(directory);
  if (!was_pinned) return was_pinned.error();
  return Pin{directory, false, *was_pinned, std::nullopt};
}

template <typename Action>
Outcome for_each(const std::vector<fs::path>& directories, bool as_json, const Action& action) {
  Outcome outcome;
  JsonWriter json;
  std::vector<Error> problems;
  json.begin_object();
  json.key("checkpoints").begin_array();
  for (const fs::path& directory : directories) {
    const Result<Pin> done = action(directory);
    if (!done) {
      problems.push_back(done.error());
      outcome.messages += message_of(done.error());
      outcome.exit_code = ExitCode::kUnreadable;
      continue;
    }
    json.begin_object();
    json.key("directory").text(directory.string());
    json.key("pinned").boolean(done->is_pinned);
    json.key("was_pinned").boolean(done->was_pinned);
    json.key("pin_note").text_or_null(done->note);
    json.end_object();
    if (!as_json) outcome.data += line_of(*done);
  }
  json.end_array();
  json.key("problems").begin_array();
  for (const Error& problem : problems) json.text(problem.what());
  json.end_array();
  json.end_object();
  if (as_json) outcome.data = std::move(json).take();
  return outcome;
}

}  // namespace

Outcome pin(const std::vector<fs::path>& directories, const std::string& note, bool as_json) {
  return for_each(directories, as_json, [&note](const fs::path& directory) { return pinned(directory, note); });
}

Outcome unpin(const std::vector<fs::path>& directories, bool as_json) {
  return for_each(directories, as_json, unpinned);
}

}  // namespace cairn::cli
