#include "inspection.h"

#include <cairn/catalog.h>
#include <cairn/checkpoint.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "catalog_text.h"
#include "json_writer.h"
#include "key_tree.h"
#include "listing.h"
#include "nearest_word.h"
#include "notes_text.h"
#include "printable.h"

namespace cairn::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kValueCharactersMax = 60;
// Larger values, for example a data loader's state, are not read for a line of text.
constexpr std::uint64_t kValueBytesMax = 16 * 1024 * 1024;

class Inspection {
 public:
  // All arguments outlive the inspection.
  // `catalog`: the whole catalog, or for text() the outline.
  Inspection(const Checkpoint& checkpoint, const Catalog& catalog, const fs::path& directory,
             const InspectionOptions& options, Outcome& outcome)
      : checkpoint_(checkpoint), catalog_(catalog), directory_(directory), options_(options), outcome_(outcome) {
    for (std::size_t i = 0; i < catalog_.keys.size(); ++i) {
      if (is_selected(name_of_key(i))) selected_.push_back(i);
    }
    report_unmatched();
  }

  std::string text() {
    std::string text;
    const auto out = std::back_inserter(text);
    fmt::format_to(out, "{}\n  {}\n", printable(directory_.string()), summary_of(catalog_));
    fmt::format_to(out, "  {}\n", origin());
    text += notes_lines(notes_of(checkpoint_, outcome_));
    for (const std::string& file : catalog_.files) fmt::format_to(out, "  {}  {}\n", printable(file), size_text(file));
    if (!options_.patterns.empty()) {
      fmt::format_to(out, "  {} of {} shown\n", selected_.size(), counted(catalog_.keys.size(), "key"));
    }
    text += "\n";
    KeyTree tree;
    for (const std::size_t i : selected_) tree.add(name_of_key(i), i);
    append_tree(tree.lines(), text);
    return text;
  }

  std::string json() {
    JsonWriter json;
    json.begin_object();
    json.key("directory").text(directory_.string());
    json.key("format").text(name_of(catalog_.format));
    json.key("save_id").text_or_null(save_id());
    json.key("version").text_or_null(catalog_.version);
    json.key("checkpoint_id").text_or_null(catalog_.checkpoint_id);
    json.key("bytes").number(tensor_bytes(catalog_));
    json.key("notes").json(notes_of(checkpoint_, outcome_).json);
    json.key("files").begin_array();
    for (const std::string& file : catalog_.files) write_file(json, file);
    json.end_array();
    json.key("keys").begin_array();
    std::unordered_map<std::string_view, const Path*, KeyHash> paths;
    for (const auto& [name, path] : catalog_.paths) paths.emplace(name, &path);
    for (const std::size_t i : selected_) {
      const auto path = paths.find(name_of_key(i));
      write_key(json, i, path == paths.end() ? nullptr : path->second);
    }
    json.end_array();
    json.end_object();
    return std::move(json).take();
  }

 private:
  const std::string& name_of_key(std::size_t index) const {
    const Catalog::KeyRef& key = catalog_.keys[index];
    return key.is_tensor ? catalog_.tensors[key.index].fqn : catalog_.values[key.index].fqn;
  }

  bool is_selected(std::string_view key) const { return selects_key(options_.patterns, key); }

  void report_unmatched() {
    for (const std::string& pattern : options_.patterns) {
      const bool is_matched = std::any_of(selected_.begin(), selected_.end(),
                                          [&](std::size_t index) { return matches_key(pattern, name_of_key(index)); });
      if (is_matched) continue;
      const std::string near = nearest_to(pattern);
      const std::string hint = near.empty() ? near : "; did you mean '" + printable(near) + "'?";
      outcome_.messages += fmt::format("cairn: no key matches '{}'{}\n", printable(pattern), hint);
      outcome_.exit_code = ExitCode::kCheckFailed;
    }
  }

  // The key nearest to a pattern without wildcards, or the beginning of keys with as many components as the pattern;
  // empty if none is near.
  std::string nearest_to(const std::string& pattern) const {
    if (pattern.find_first_of("*?[\\") != std::string::npos) return {};
    const auto dots = std::count(pattern.begin(), pattern.end(), '.');
    std::vector<std::string> beginnings;
    for (std::size_t i = 0; i < catalog_.keys.size(); ++i) {
      const std::string& key = name_of_key(i);
      std::size_t end = key.find('.');
      for (auto left = dots; left > 0 && end != std::string::npos; --left) end = key.find('.', end + 1);
      const std::string_view beginning = std::string_view(key).substr(0, end);
      if (beginnings.empty() || beginnings.back() != beginning) beginnings.emplace_back(beginning);
    }
    if (const auto near = nearest_word(pattern, beginnings)) return *near;
    const std::vector<std::string> keys = catalog_.nearest_keys(pattern, 1);
    return keys.empty() ? std::string() : keys.front();
  }

  std::optional<std::string> save_id() const {
    const auto id = checkpoint_.save_id();
    return id ? std::optional(to_hex(*id)) : std::nullopt;
  }

  std::string origin() const {
    if (catalog_.format == CheckpointFormat::kSafetensors) return "safetensors";
    if (catalog_.format == CheckpointFormat::kTorchSave) return "a file of torch.save";
    if (catalog_.format == CheckpointFormat::kTorchCheckpointing) return "written by torch_checkpointing";
    const auto id = save_id();
    if (id) return "written by Cairn, save " + *id;
    return "written by stock torch" + (catalog_.version ? ", format " + printable(*catalog_.version) : std::string());
  }

  std::string size_text(const std::string& file) const {
    const Result<std::uint64_t> bytes = checkpoint_.file_bytes(file);
    if (bytes) return byte_text(*bytes);
    if (bytes.error().code() == ErrorCode::kNotFound) return "missing";
    return bytes.error().code() == ErrorCode::kUnsafe ? "not a regular file in the directory" : "unreadable";
  }

  // A line of the tree, and the keys below the line that the depth hides.
  struct ShownLine {
    const TreeLine* line;
    std::size_t hidden = 0;
    std::uint64_t hidden_bytes = 0;  // of tensors
  };

  std::vector<ShownLine> shown_of(const std::vector<TreeLine>& lines) const {
    std::vector<ShownLine> shown;
    for (const TreeLine& line : lines) {
      if (!options_.depth || line.depth < *options_.depth) {
        shown.push_back({&line});
      } else if (line.key && !shown.empty()) {
        ++shown.back().hidden;
        const Catalog::KeyRef& key = catalog_.keys[*line.key];
        if (key.is_tensor) {
          shown.back().hidden_bytes =
              sum_of_bytes(shown.back().hidden_bytes, tensor_bytes(catalog_.tensors[key.index]));
        }
      }
    }
    return shown;
  }

  static std::size_t name_width(const TreeLine& line) { return 2 * line.depth + line.name.size(); }

  void append_tree(const std::vector<TreeLine>& lines, std::string& text) {
    const std::vector<ShownLine> shown = shown_of(lines);
    std::size_t width = 0;
    for (const auto& [line, hidden, bytes] : shown) {
      if (line->key || hidden != 0) width = std::max(width, std::min(name_width(*line), kNameColumnMax));
    }
    for (const auto& [line, hidden, bytes] : shown) {
      const std::string name = std::string(2 * line->depth, ' ') + printable(line->name);
      std::string said = line->key ? describe(*line->key) : std::string();
      if (hidden != 0) {
        said +=
            fmt::format("{}{} below, {} of tensors", line->key ? "; " : "", counted(hidden, "key"), byte_text(bytes));
      }
      if (said.empty()) {
        text += name + "\n";
      } else {
        fmt::format_to(std::back_inserter(text), "{:<{}}  {}\n", name, width, said);
      }
    }
  }

  // The catalog may be the outline, without chunks and places: the entry has these.
  std::string describe(std::size_t index) {
    const Result<std::optional<KeyEntry>> entry = checkpoint_.entry(name_of_key(index));
    if (!entry || !*entry) {
      if (!entry) outcome_.messages += message_of(entry.error());
      outcome_.exit_code = ExitCode::kUnreadable;
      return "(unreadable)";
    }
    if (const auto* value = std::get_if<CatalogValue>(&**entry)) {
      return fmt::format("= {}", printable(value_text(*value).value_or("(unreadable)")));
    }
    const auto& tensor = std::get<CatalogTensor>(**entry);
    std::string text = fmt::format("{:<28} {:>10}  {:>9}", kind_text(tensor), byte_text(tensor_bytes(tensor)),
                                   counted(tensor.chunk_count(), "chunk"));
    std::set<std::uint32_t> files;
    for (const ItemLocation& location : tensor.locations) {
      if (location.length != 0) files.insert(location.file);  // a chunk without bytes has no file
    }
    if (files.size() > 1) return text + "  in " + counted(files.size(), "file");
    if (files.size() == 1) text += "  " + printable(catalog_.files[*files.begin()]);
    return text;
  }

  // The value as Python would print it; nullopt and a message if the value can't be read.
  std::optional<std::string> value_text(const CatalogValue& value) {
    if (value.location.length > kValueBytesMax) return "<" + byte_text(value.location.length) + ">";
    const Result<Value> read = checkpoint_.read_value(value.fqn);
    if (read) return to_string(*read, kValueCharactersMax);
    // A payload in a framework's own format is not damage.
    if (read.error().code() == ErrorCode::kUnsupported) return "<" + byte_text(value.location.length) + ">";
    outcome_.messages += message_of(read.error());
    outcome_.exit_code = ExitCode::kUnreadable;
    return std::nullopt;
  }

  void write_file(JsonWriter& json, const std::string& file) const {
    json.begin_object();
    json.key("name").text(file);
    json.key("bytes");
    if (const Result<std::uint64_t> bytes = checkpoint_.file_bytes(file)) {
      json.number(*bytes);
    } else {
      json.null();
    }
    json.end_object();
  }

  void write_key(JsonWriter& json, std::size_t index, const Path* path) {
    const Catalog::KeyRef& key = catalog_.keys[index];
    json.begin_object();
    json.key("key").text(name_of_key(index));
    if (path != nullptr) write_path(json, *path);
    if (key.is_tensor) {
      write_tensor(json, catalog_.tensors[key.index]);
    } else {
      const CatalogValue& value = catalog_.values[key.index];
      json.key("kind").text("value");
      json.key("value").text_or_null(value_text(value));
      write_location(json, value.location);
    }
    json.end_object();
  }

  static void write_path(JsonWriter& json, const Path& path) {
    json.key("path").begin_array();
    for (const PathElement& element : path) {
      if (const auto* name = std::get_if<std::string>(&element)) {
        json.text(*name);
      } else {
        json.number(std::get<std::int64_t>(element));
      }
    }
    json.end_array();
  }

  void write_tensor(JsonWriter& json, const CatalogTensor& tensor) const {
    json.key("kind").text("tensor");
    json.key("dtype").text(name_of(tensor.dtype));
    write_numbers(json, "shape", tensor.shape.span());
    json.key("bytes").number(tensor_bytes(tensor));
    json.key("requires_grad").boolean(tensor.requires_grad);
    if (tensor.strides) write_numbers(json, "strides", tensor.strides->span());
    json.key("chunks").begin_array();
    const std::size_t dimensions = tensor.shape.size();
    for (std::size_t i = 0; i < tensor.chunk_count(); ++i) {
      const auto box = std::span(tensor.boxes).subspan(2 * dimensions * i, 2 * dimensions);
      json.begin_object();
      write_numbers(json, "offsets", box.first(dimensions));
      write_numbers(json, "sizes", box.subspan(dimensions));
      write_location(json, tensor.locations[i]);
      json.end_object();
    }
    json.end_array();
  }

  static void write_numbers(JsonWriter& json, std::string_view name, std::span<const std::int64_t> numbers) {
    json.key(name).begin_array();
    for (const std::int64_t number : numbers) json.number(number);
    json.end_array();
  }

  void write_location(JsonWriter& json, const ItemLocation& location) const {
    if (location.length == 0) return;  // the item has no bytes in a file
    json.key("file").text(catalog_.files[location.file]);
    json.key("offset").number(location.offset);
    json.key("length").number(location.length);
  }

  const Checkpoint& checkpoint_;
  const Catalog& catalog_;
  const fs::path& directory_;
  const InspectionOptions& options_;
  Outcome& outcome_;
  std::vector<std::size_t> selected_;  // indices into catalog_.keys
};

}  // namespace

// The JSON has the nested places of the keys, which only the whole metadata has.
Outcome inspect(const fs::path& directory, const InspectionOptions& options) {
  const Result<Checkpoint> checkpoint = options.json ? open(directory) : open_to_inspect(directory);
  if (!checkpoint) return unopened(checkpoint.error(), directory);
  Outcome outcome;
  if (options.json) {
    outcome.data = Inspection(*checkpoint, checkpoint->catalog(), directory, options, outcome).json();
  } else {
    const Result<Catalog> outline = checkpoint->outline();
    if (!outline) return unopened(outline.error(), directory);
    outcome.data = Inspection(*checkpoint, *outline, directory, options, outcome).text();
  }
  outcome.messages += damage_message(*checkpoint);
  return outcome;
}

}  // namespace cairn::cli
