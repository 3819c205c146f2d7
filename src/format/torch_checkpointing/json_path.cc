#include "format/torch_checkpointing/json_path.h"

#include <utility>

#include "format/json/json_reader.h"

namespace cairn::torch_checkpointing {
namespace {

using json::JsonReader;

// A key that is no text has the text that Python's str() gives.
Result<std::string> read_step(JsonReader& reader) {
  CAIRN_TRY_ASSIGN(const std::string_view step, reader.read_value_text());
  if (step == "true") return std::string("True");
  if (step == "false") return std::string("False");
  if (step == "null") return std::string("None");
  if (!step.starts_with('"')) return std::string(step);
  JsonReader text(step, reader.offset() - step.size());
  return text.read_string();
}

Result<std::string> read_rest(JsonReader& reader) {
  std::string path;
  for (bool is_first = true;; is_first = false) {
    CAIRN_TRY_ASSIGN(const bool follows, reader.next_element());
    if (!follows) break;
    CAIRN_TRY_ASSIGN(const std::string step, read_step(reader));
    if (!is_first) path += '.';
    path += step;
  }
  CAIRN_TRY(reader.end());
  return path;
}

// The offset is of the path, and says nothing of the file.
template <typename T>
Result<T> explained(Result<T> read, std::string_view text) {
  if (read) return read;
  return Error(ErrorCode::kCorrupt, "metadata.pkl has a path that is no JSON list").actual(text);
}

Result<ItemPath> read_both(JsonReader& reader) {
  CAIRN_TRY(reader.begin_array());
  CAIRN_TRY_ASSIGN(const bool follows, reader.next_element());
  if (!follows) return reader.damaged("an item");
  ItemPath path;
  CAIRN_TRY_ASSIGN(path.item, reader.read_string());
  CAIRN_TRY_ASSIGN(path.rest, read_rest(reader));
  return path;
}

Result<std::string> read_list(JsonReader& reader) {
  CAIRN_TRY(reader.begin_array());
  return read_rest(reader);
}

}  // namespace

Result<std::string> read_json_path(std::string_view text) {
  JsonReader reader(text, 0);
  return explained(read_list(reader), text);
}

Result<ItemPath> read_item_path(std::string_view text) {
  JsonReader reader(text, 0);
  return explained(read_both(reader), text);
}

}  // namespace cairn::torch_checkpointing
