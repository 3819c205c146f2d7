#include "listing.h"

#include <cairn/bucket_url.h>
#include <cairn/checkpoint.h>
#include <fmt/format.h>

#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "catalog_text.h"
#include "folder_listing.h"
#include "json_writer.h"
#include "notes_text.h"
#include "printable.h"

namespace cairn::cli {
namespace {

namespace fs = std::filesystem;

std::string line_of(const KeySummary& key) {
  const std::string name = printable(key.fqn);
  if (!key.is_tensor) return fmt::format("{:<28} {:>10}  {}\n", "value", "", name);
  return fmt::format("{:<28} {:>10}  {}\n", kind_text(key.dtype, key.shape),
                     byte_text(tensor_bytes(key.dtype, key.shape)), name);
}

// As in `cairn inspect --json`, without chunks and values.
void write_key(JsonWriter& json, const KeySummary& key) {
  json.begin_object();
  if (key.is_tensor) {
    write_members(json, key.fqn, key.dtype, key.shape);
    json.key("bytes").number(tensor_bytes(key.dtype, key.shape));
  } else {
    json.key("key").text(key.fqn);
    json.key("kind").text("value");
  }
  json.end_object();
}

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

// Prints each key when its part of the metadata has been read: the keys of a large checkpoint take gigabytes. main says
// if stdout could not be written.
Outcome list_keys(const Checkpoint& checkpoint, const fs::path& directory, bool as_json) {
  Outcome outcome;
  JsonWriter json;
  json.begin_object();
  json.key("directory").text(directory.string());
  if (as_json) json.key("notes").json(notes_of(checkpoint, outcome).json);
  json.key("keys").begin_array();
  KeyStream keys(checkpoint);
  while (true) {
    const Result<std::span<const KeySummary>> batch = keys.next();
    if (!batch) return {{}, message_of(batch.error()), ExitCode::kUnreadable};
    if (batch->empty()) break;
    std::string text;
    for (const KeySummary& key : *batch) {
      if (as_json) {
        write_key(json, key);
      } else {
        text += line_of(key);
      }
    }
    print(as_json ? json.drain() : text);
  }
  json.end_array();
  json.end_object();
  if (as_json) outcome.data = std::move(json).take();
  outcome.messages += damage_message(checkpoint);
  return outcome;
}

// A directory of torch_checkpointing, or a folder of checkpoints. The names of its files alone don't tell the two
// apart.
Outcome list_items_or_folder(const fs::path& directory, bool json) {
  const auto list_items = [&]() -> std::optional<Outcome> {
    const Result<Checkpoint> checkpoint = open_to_inspect(directory);
    if (!checkpoint || checkpoint->format() != CheckpointFormat::kTorchCheckpointing) return std::nullopt;
    return list_keys(*checkpoint, directory, json);
  };
  if (has_item_metadata(directory)) {
    if (std::optional<Outcome> listed = list_items()) return *std::move(listed);
  }
  Outcome folder = list_folder(directory, json);
  if (folder.exit_code == ExitCode::kOk) return folder;
  std::optional<Outcome> listed = list_items();
  return listed ? *std::move(listed) : std::move(folder);
}

// The opening tells whether a prefix is one checkpoint.
Outcome list_in_bucket(const fs::path& directory, bool json) {
  const Result<Checkpoint> checkpoint = open_to_inspect(directory);
  if (checkpoint) return list_keys(*checkpoint, directory, json);
  if (checkpoint.error().code() != ErrorCode::kNotFound) return unopened(checkpoint.error(), directory);
  return list_folder(directory, json);
}

}  // namespace

Outcome list(const fs::path& directory, bool json) {
  if (is_bucket_url(directory)) return list_in_bucket(directory, json);
  std::error_code ignored;
  const bool is_one = fs::is_regular_file(directory, ignored) || has_metadata(directory) || has_safetensors(directory);
  if (!is_one) return list_items_or_folder(directory, json);
  const Result<Checkpoint> checkpoint = open_to_inspect(directory);
  if (!checkpoint) return unopened(checkpoint.error(), directory);
  return list_keys(*checkpoint, directory, json);
}

}  // namespace cairn::cli
