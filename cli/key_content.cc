#include "key_content.h"

#include <cairn/inspect.h>
#include <fmt/format.h>

#include <limits>
#include <optional>
#include <utility>
#include <variant>

#include "catalog_text.h"
#include "ending_signals.h"
#include "json_writer.h"
#include "printable.h"
#include "value_json.h"

namespace cairn::cli {
namespace {

Outcome failure(const Error& error) { return {{}, message_of(error), exit_code_of_copy(error)}; }

std::string number_text(const std::optional<TensorSummary::Number>& number) {
  if (!number) return "none";
  if (const auto* real = std::get_if<double>(&*number)) return fmt::format("{:.9g}", *real);
  return std::visit([](auto integer) { return fmt::format("{}", integer); }, *number);
}

void write_number(JsonWriter& json, std::string_view name, const std::optional<TensorSummary::Number>& number) {
  json.key(name);
  if (!number) return json.null();
  std::visit([&json](auto value) { json.number(value); }, *number);
}

// "  min -3, max 4, mean 0.5 (of the finite elements)"
std::string order_text(const TensorSummary& summary) {
  switch (summary.numbers) {
    case TensorSummary::Numbers::kComplex: return "  complex numbers: no min, max and mean";
    case TensorSummary::Numbers::kNone: return "  no numbers: no min, max and mean";
    default: break;
  }
  return fmt::format("  min {}, max {}, mean {} (of the finite elements)", number_text(summary.minimum),
                     number_text(summary.maximum), number_text(summary.mean));
}

std::string text_of(const CatalogTensor& tensor, const TensorSummary& summary) {
  std::string text = fmt::format("{}  {}\n{}\n  {} elements", printable(tensor.fqn), kind_text(tensor),
                                 order_text(summary), summary.elements);
  if (summary.numbers != TensorSummary::Numbers::kNone) {
    text += fmt::format(", {} NaN, {} infinite", summary.nan_count, summary.infinity_count);
  }
  return text + "\n";
}

std::string json_of(const CatalogTensor& tensor, const TensorSummary& summary) {
  const auto count = [&](std::uint64_t number) {
    return summary.numbers == TensorSummary::Numbers::kNone ? std::nullopt : std::optional(number);
  };
  JsonWriter json;
  json.begin_object();
  write_members(json, tensor);
  json.key("numbers").text(name_of(summary.numbers));
  json.key("elements").number(summary.elements);
  write_number(json, "min", summary.minimum);
  write_number(json, "max", summary.maximum);
  write_number(json, "mean", summary.mean);
  json.key("nan").number_or_null(count(summary.nan_count));
  json.key("infinite").number_or_null(count(summary.infinity_count));
  json.end_object();
  return std::move(json).take();
}

std::string text_of(const Value& value) { return to_string(value, std::numeric_limits<std::size_t>::max()); }

std::string json_of(const std::string& key, const Value& value) {
  JsonWriter json;
  json.begin_object();
  json.key("key").text(key);
  json.key("kind").text("value");
  json.key("type").text(type_name(value));
  json.key("value");
  write_value(json, value);
  json.key("text").text(text_of(value));
  json.end_object();
  return std::move(json).take();
}

Outcome export_tensor(const std::filesystem::path& directory, const std::string& key, const KeyContentOptions& options,
                      TensorPassOptions pass) {
  const EndingSignals signals;
  pass.interrupted = [] { return EndingSignals::caught() != 0; };
  const Result<void> exported = export_npy(directory, key, options.npy, pass, options.overwrite);
  if (exported) return {};
  Outcome outcome = failure(exported.error());
  outcome.signal = EndingSignals::caught();
  return outcome;
}

}  // namespace

Outcome show_key(const std::filesystem::path& directory, const std::string& key, const KeyContentOptions& options) {
  const TensorPassOptions pass{.follow_links = options.follow_links};
  if (!options.npy.empty()) return export_tensor(directory, key, options, pass);
  const Result<KeyContent> content = read_key(directory, key, pass);
  if (!content) return failure(content.error());
  Outcome outcome;
  if (content->value) {
    outcome.data = options.json ? json_of(key, *content->value) : printable(text_of(*content->value)) + "\n";
  } else {
    outcome.data =
        options.json ? json_of(*content->tensor, content->summary) : text_of(*content->tensor, content->summary);
  }
  return outcome;
}

}  // namespace cairn::cli
