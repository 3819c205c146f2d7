#include "listing.h"

#include <cairn/checkpoint.h>
#include <fmt/format.h>

#include <iterator>
#include <string>
#include <utility>

#include "catalog_text.h"
#include "folder_listing.h"
#include "json_writer.h"
#include "printable.h"

namespace cairn::cli {
namespace {

namespace fs = std::filesystem;

std::string text_of(const Catalog& catalog) {
  std::string text;
  for (const Catalog::KeyRef& key : catalog.keys) {
    if (key.is_tensor) {
      const CatalogTensor& tensor = catalog.tensors[key.index];
      fmt::format_to(std::back_inserter(text), "{:<28} {:>10}  {}\n", kind_text(tensor),
                     byte_text(tensor_bytes(tensor)), printable(tensor.fqn));
    } else {
      fmt::format_to(std::back_inserter(text), "{:<28} {:>10}  {}\n", "value", "",
                     printable(catalog.values[key.index].fqn));
    }
  }
  return text;
}

// The keys as in `cairn inspect --json`, without chunks and values.
std::string json_of(const Catalog& catalog, const fs::path& directory) {
  JsonWriter json;
  json.begin_object();
  json.key("directory").text(directory.string());
  json.key("keys").begin_array();
  for (const Catalog::KeyRef& key : catalog.keys) {
    json.begin_object();
    if (key.is_tensor) {
      const CatalogTensor& tensor = catalog.tensors[key.index];
      write_members(json, tensor);
      json.key("bytes").number(tensor_bytes(tensor));
    } else {
      json.key("key").text(catalog.values[key.index].fqn);
      json.key("kind").text("value");
    }
    json.end_object();
  }
  json.end_array();
  json.end_object();
  return std::move(json).take();
}

}  // namespace

Outcome list(const fs::path& directory, bool json) {
  std::error_code ignored;
  const bool is_one = fs::is_regular_file(directory, ignored) || has_metadata(directory) || has_safetensors(directory);
  if (!is_one) return list_folder(directory, json);
  const Result<Checkpoint> checkpoint = open(directory);
  if (!checkpoint) return unopened(checkpoint.error(), directory);
  const Catalog& catalog = checkpoint->catalog();
  return {json ? json_of(catalog, directory) : text_of(catalog), {}, ExitCode::kOk};
}

}  // namespace cairn::cli
