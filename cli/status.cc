#include "status.h"

#include <cairn/latest.h>
#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "printable.h"

namespace cairn::cli {
namespace {

std::string_view text_of(SaveInFlightWriter::State state) {
  switch (state) {
    case SaveInFlightWriter::State::kAlive: return "alive";
    case SaveInFlightWriter::State::kDead: return "dead";
    case SaveInFlightWriter::State::kUnknown: return "unknown";
  }
  return "";
}

std::string_view text_of(SaveInFlight::Decision decision) {
  switch (decision) {
    case SaveInFlight::Decision::kNone: return "none";
    case SaveInFlight::Decision::kCommitted: return "committed";
    case SaveInFlight::Decision::kFailed: return "failed";
  }
  return "";
}

// The writer's progress; empty if the lease has no progress.
std::string progress_of(const SaveInFlightWriter& writer) {
  if (!writer.is_readable) return ", its lease can't be read";
  if (!writer.progress) return "";
  std::string text = fmt::format(", {}, {} of {} bytes written", name_of(writer.progress->phase),
                                 writer.progress->bytes_written, writer.progress->bytes_total);
  if (!writer.pending_call.empty()) {
    text += fmt::format(", {} for {:.1f} s", printable(writer.pending_call), writer.seconds_without_progress);
  }
  return text;
}

std::string text_of(const std::vector<SaveInFlight>& saves) {
  std::string text;
  const auto out = std::back_inserter(text);
  for (const SaveInFlight& save : saves) {
    fmt::format_to(out, "{}: save {}, number {} of job {}: {}\n", printable(save.directory.string()),
                   to_hex(save.save_id), save.save_number, to_hex(save.job_id), story_of(save));
    for (const SaveInFlightWriter& writer : save.writers) {
      const std::string who = writer.rank ? fmt::format("rank {}", *writer.rank) : "coordinator";
      fmt::format_to(out, "  {:<12} {:<8} host {}, pid {}, last sign of life {:.1f} s ago{}\n", who,
                     text_of(writer.state), printable(writer.host), writer.pid, writer.seconds_since_sign,
                     progress_of(writer));
    }
    for (const Error& failure : save.failures) fmt::format_to(out, "  failed: {}\n", error_text(failure));
  }
  return text.empty() ? "no save is in flight\n" : text;
}

std::int64_t milliseconds_of(double seconds) { return std::llround(seconds * 1e3); }

void write_writer(JsonWriter& json, const SaveInFlightWriter& writer) {
  json.begin_object();
  json.key("rank").number_or_null(writer.rank);
  json.key("host").text(writer.host);
  json.key("pid").number(writer.pid);
  json.key("state").text(text_of(writer.state));
  json.key("milliseconds_since_sign").number(milliseconds_of(writer.seconds_since_sign));
  json.key("is_readable").boolean(writer.is_readable);
  json.key("progress");
  if (writer.progress) {
    json.begin_object();
    json.key("phase").text(name_of(writer.progress->phase));
    json.key("bytes_written").number(writer.progress->bytes_written);
    json.key("bytes_total").number(writer.progress->bytes_total);
    json.end_object();
  } else {
    json.null();
  }
  json.key("pending_call").text(writer.pending_call);
  json.key("milliseconds_without_progress").number(milliseconds_of(writer.seconds_without_progress));
  json.end_object();
}

std::string json_of(const std::vector<SaveInFlight>& saves) {
  JsonWriter json;
  json.begin_object();
  json.key("saves").begin_array();
  for (const SaveInFlight& save : saves) write_save(json, save);
  json.end_array();
  json.end_object();
  return std::move(json).take();
}

}  // namespace

std::string story_of(const SaveInFlight& save) {
  if (!save.is_readable) return "belongs to a different user and can't be read";
  const bool is_committed = save.decision == SaveInFlight::Decision::kCommitted;
  const bool is_failed = save.decision == SaveInFlight::Decision::kFailed;
  if (save.is_leftover) {
    return fmt::format("died{}: 'cairn clean {}' removes its files",
                       is_committed ? " after its commit"
                       : is_failed  ? " after its failure"
                                    : "",
                       printable(save.directory.string()));
  }
  if (is_committed) return "committed, about to end";
  return is_failed ? "failed, about to end" : "in flight";
}

void write_save(JsonWriter& json, const SaveInFlight& save) {
  json.begin_object();
  json.key("directory").text(save.directory.string());
  json.key("save_id").text(to_hex(save.save_id));
  json.key("job_id").text(to_hex(save.job_id));
  json.key("save_number").number(save.save_number);
  json.key("decision").text(text_of(save.decision));
  json.key("is_leftover").boolean(save.is_leftover);
  json.key("is_readable").boolean(save.is_readable);
  json.key("writers").begin_array();
  for (const SaveInFlightWriter& writer : save.writers) write_writer(json, writer);
  json.end_array();
  json.key("failures").begin_array();
  for (const Error& failure : save.failures) json.text(failure.what());
  json.end_array();
  json.end_object();
}

Outcome status(const std::filesystem::path& root, bool as_json) {
  const Result<std::vector<SaveInFlight>> saves = saves_in_flight(root);
  if (!saves) return {{}, message_of(saves.error()), ExitCode::kUnreadable};
  return {as_json ? json_of(*saves) : text_of(*saves), {}, ExitCode::kOk};
}

}  // namespace cairn::cli
