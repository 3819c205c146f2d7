#include "run/run_notes.h"

#include <fmt/format.h>

#include "format/json/json_reader.h"
#include "format/json/json_string.h"
#include "format/manifest/notes.h"

namespace cairn::run {
namespace {

// The text between the braces of an object without the two members.
Result<std::string> members_of(const std::string& notes) {
  CAIRN_TRY(manifest::check_notes(notes));
  json::JsonReader reader(notes, 0);
  CAIRN_TRY(reader.begin_object());
  bool is_empty = true;
  while (true) {
    CAIRN_TRY_ASSIGN(const auto name, reader.next_name());
    if (!name) break;
    is_empty = false;
    if (*name == "metrics" || *name == "run") {
      return Error(ErrorCode::kInvalidArgument, "the member '" + *name + "' of the notes is the manager's")
          .expected("metrics in their own argument, and no member 'run'");
    }
    CAIRN_TRY(reader.skip_value());
  }
  if (is_empty) return std::string();
  const std::size_t begin = notes.find('{') + 1;
  return notes.substr(begin, notes.rfind('}') - begin);
}

}  // namespace

Result<std::string> notes_of_save(const std::string& notes, const std::map<std::string, double>& metrics,
                                  const std::string& account) {
  std::string text = "{";
  if (!metrics.empty()) {
    text += "\"metrics\": {";
    const char* separator = "";
    for (const auto& [name, value] : metrics) {
      text += separator;
      CAIRN_TRY(json::append_json_string(text, name));
      text += fmt::format(": {}", value);
      separator = ", ";
    }
    text += "}, ";
  }
  text += "\"run\": " + account;
  if (!notes.empty()) {
    CAIRN_TRY_ASSIGN(const std::string members, members_of(notes));
    if (!members.empty()) text += ", " + members;
  }
  text += "}";
  if (text.size() > manifest::kNotesBytesMax) {
    return Error(ErrorCode::kInvalidArgument, "the notes and metrics of a save are too large")
        .expected("at most " + std::to_string(manifest::kNotesBytesMax) +
                  " bytes with the account of the run, which has " + std::to_string(account.size()))
        .actual(std::to_string(text.size()) + " bytes");
  }
  return text;
}

}  // namespace cairn::run
