#include "key_content.h"

#include <cairn/checkpoint.h>
#include <cairn/npy.h>
#include <cairn/tensor_summary.h>
#include <fmt/format.h>

#include <limits>
#include <optional>

#include "catalog_text.h"
#include "json_writer.h"
#include "printable.h"
#include "progress_bar.h"

namespace cairn::cli {
namespace {

Outcome failure(const Error& error) {
  const bool is_missing = error.code() == ErrorCode::kMissingKey;
  return {{}, message_of(error), is_missing ? ExitCode::kCheckFailed : ExitCode::kUnreadable};
}

std::string number_text(const std::optional<double>& number) {
  return number ? fmt::format("{:.9g}", *number) : std::string("none");
}

void write_number(JsonWriter& json, std::string_view name, const std::optional<double>& number) {
  json.key(name);
  number ? json.number(*number) : json.null();
}

std::string text_of(const CatalogTensor& tensor, const TensorSummary& summary) {
  return fmt::format("{}  {}\n  min {}, max {}, mean {} (of the finite elements)\n  {} elements, {} NaN, {} infinite\n",
                     printable(tensor.fqn), kind_text(tensor), number_text(summary.minimum),
                     number_text(summary.maximum), number_text(summary.mean), summary.elements, summary.nan_count,
                     summary.infinity_count);
}

std::string json_of(const CatalogTensor& tensor, const TensorSummary& summary) {
  JsonWriter json;
  json.begin_object();
  write_members(json, tensor);
  json.key("elements").number(summary.elements);
  write_number(json, "min", summary.minimum);
  write_number(json, "max", summary.maximum);
  write_number(json, "mean", summary.mean);
  json.key("nan").number(summary.nan_count);
  json.key("infinite").number(summary.infinity_count);
  json.end_object();
  return std::move(json).take();
}

Outcome show_value(const Checkpoint& checkpoint, const std::string& key, const KeyContentOptions& options) {
  const Result<Value> value = checkpoint.read_value(key, {.follow_links = options.follow_links});
  if (!value) return failure(value.error());
  const std::string text = to_string(*value, std::numeric_limits<std::size_t>::max());
  if (!options.json) return {printable(text) + "\n", {}, ExitCode::kOk};
  JsonWriter json;
  json.begin_object();
  json.key("key").text(key);
  json.key("kind").text("value");
  json.key("value").text(text);
  json.end_object();
  return {std::move(json).take(), {}, ExitCode::kOk};
}

}  // namespace

Outcome show_key(const std::filesystem::path& directory, const std::string& key, const KeyContentOptions& options) {
  const Result<Checkpoint> checkpoint = open(directory);
  if (!checkpoint) return failure(checkpoint.error());
  const bool is_value = checkpoint->catalog().find_value(key) != nullptr;
  if (is_value && options.npy.empty()) return show_value(*checkpoint, key, options);
  TensorPassOptions pass{.follow_links = options.follow_links};
  auto bar = std::make_optional<ProgressBar>(options.npy.empty() ? "reading" : "exporting");
  pass.progress = [&bar](std::uint64_t done, std::uint64_t total) { bar->show(done, total); };
  if (!options.npy.empty()) {
    const Result<void> exported = export_npy(*checkpoint, key, options.npy, pass);
    bar.reset();  // before any output
    return exported ? Outcome{} : failure(exported.error());
  }
  const Result<TensorSummary> summary = summarize(*checkpoint, key, pass);
  bar.reset();
  if (!summary) return failure(summary.error());
  const CatalogTensor& tensor = *checkpoint->catalog().find_tensor(key);
  return {options.json ? json_of(tensor, *summary) : text_of(tensor, *summary), {}, ExitCode::kOk};
}

}  // namespace cairn::cli
