#include "inspection.h"

#include <cairn/checkpoint.h>
#include <cairn/seeded_hash.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "catalog_text.h"
#include "json_writer.h"
#include "key_tree.h"
#include "printable.h"

namespace cairn::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kValueCharactersMax = 60;
// Larger values (a data loader's state, say) are not worth reading for a line of text.
constexpr std::uint64_t kValueBytesMax = 16 * 1024 * 1024;
// Long names do not push the columns off the screen.
constexpr std::size_t kNameColumnMax = 48;

class Inspection {
 public:
  Inspection(const Checkpoint& checkpoint, fs::path directory, Outcome& outcome)
      : checkpoint_(checkpoint), catalog_(checkpoint.catalog()), directory_(std::move(directory)), outcome_(outcome) {}

  std::string text() {
    std::string text;
    const auto out = std::back_inserter(text);
    fmt::format_to(out, "{}\n  {}\n", printable(directory_.string()), summary_of(catalog_));
    fmt::format_to(out, "  {}\n", origin());
    for (const std::string& file : catalog_.files) fmt::format_to(out, "  {}  {}\n", printable(file), size_text(file));
    text += "\n";
    KeyTree tree;
    for (std::size_t i = 0; i < catalog_.keys.size(); ++i) tree.add(name_of_key(i), i);
    append_tree(tree.lines(), text);
    return text;
  }

  std::string json() {
    JsonWriter json;
    json.begin_object();
    json.key("directory").text(directory_.string());
    json.key("save_id").text_or_null(save_id());
    json.key("version").text_or_null(catalog_.version);
    json.key("checkpoint_id").text_or_null(catalog_.checkpoint_id);
    json.key("bytes").number(tensor_bytes(catalog_));
    json.key("files").begin_array();
    for (const std::string& file : catalog_.files) write_file(json, file);
    json.end_array();
    json.key("keys").begin_array();
    std::unordered_map<std::string_view, const Path*, SeededHash> paths;
    for (const auto& [name, path] : catalog_.paths) paths.emplace(name, &path);
    for (std::size_t i = 0; i < catalog_.keys.size(); ++i) {
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

  std::optional<std::string> save_id() const {
    const auto id = checkpoint_.save_id();
    return id ? std::optional(to_hex(*id)) : std::nullopt;
  }

  std::string origin() const {
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

  static std::size_t name_width(const TreeLine& line) { return 2 * line.depth + line.name.size(); }

  void append_tree(const std::vector<TreeLine>& lines, std::string& text) {
    std::size_t width = 0;
    for (const TreeLine& line : lines) {
      if (line.key) width = std::max(width, std::min(name_width(line), kNameColumnMax));
    }
    for (const TreeLine& line : lines) {
      const std::string name = std::string(2 * line.depth, ' ') + printable(line.name);
      if (line.key) {
        fmt::format_to(std::back_inserter(text), "{:<{}}  {}\n", name, width, describe(*line.key));
      } else {
        text += name + "\n";
      }
    }
  }

  std::string describe(std::size_t index) {
    const Catalog::KeyRef& key = catalog_.keys[index];
    if (!key.is_tensor) {
      const CatalogValue& value = catalog_.values[key.index];
      return fmt::format("= {}", printable(value_text(value).value_or("(unreadable)")));
    }
    const CatalogTensor& tensor = catalog_.tensors[key.index];
    std::string text = fmt::format("{:<28} {:>10}  {:>9}", kind_text(tensor), byte_text(tensor_bytes(tensor)),
                                   counted(tensor.chunk_count(), "chunk"));
    std::set<std::uint32_t> files;
    for (const ItemLocation& location : tensor.locations) {
      if (location.length != 0) files.insert(location.file);  // of others storage has no bytes, and so no file
    }
    if (files.size() > 1) return text + "  in " + counted(files.size(), "file");
    if (files.size() == 1) text += "  " + printable(catalog_.files[*files.begin()]);
    return text;
  }

  // As Python would print it; nullopt, and a message, if it can't be read.
  std::optional<std::string> value_text(const CatalogValue& value) {
    if (value.location.length > kValueBytesMax) return "<" + byte_text(value.location.length) + ">";
    const Result<Value> read = checkpoint_.read_value(value.fqn);
    if (read) return to_string(*read, kValueCharactersMax);
    // A payload of a framework's own making is no damage.
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
    if (location.length == 0) return;  // storage has no bytes for it
    json.key("file").text(catalog_.files[location.file]);
    json.key("offset").number(location.offset);
    json.key("length").number(location.length);
  }

  const Checkpoint& checkpoint_;
  const Catalog& catalog_;
  fs::path directory_;
  Outcome& outcome_;
};

}  // namespace

Outcome inspect(const fs::path& directory, bool json) {
  const Result<Checkpoint> checkpoint = open(directory);
  if (!checkpoint) return {{}, message_of(checkpoint.error()), ExitCode::kUnreadable};
  Outcome outcome;
  Inspection inspection(*checkpoint, directory, outcome);
  outcome.data = json ? inspection.json() : inspection.text();
  return outcome;
}

}  // namespace cairn::cli
