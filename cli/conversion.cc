#include "conversion.h"

#include <cairn/convert.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "byte_size.h"
#include "ending_signals.h"
#include "json_writer.h"
#include "printable.h"

namespace cairn::cli {
namespace {

std::optional<CheckpointFormat> format_of(std::string_view name) {
  for (const auto format : {CheckpointFormat::kDcp, CheckpointFormat::kSafetensors, CheckpointFormat::kTorchSave}) {
    if (name == name_of(format)) return format;
  }
  return std::nullopt;
}

// The format that the target's name means; nullopt for other names.
std::optional<CheckpointFormat> format_of_target(const std::filesystem::path& target) {
  const std::string extension = lower_case(target.extension().string());
  if (extension == ".safetensors") return CheckpointFormat::kSafetensors;
  constexpr std::array<std::string_view, 4> kOfTorch{".pt", ".pth", ".bin", ".ckpt"};
  if (std::find(kOfTorch.begin(), kOfTorch.end(), extension) != kOfTorch.end()) return CheckpointFormat::kTorchSave;
  return std::nullopt;
}

// A dtype by torch's name, or by the short name in use for models.
std::optional<DType> dtype_of(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, DType>, 7> kShort{{{"bf16", DType::kBFloat16},
                                                                      {"fp16", DType::kFloat16},
                                                                      {"f16", DType::kFloat16},
                                                                      {"fp32", DType::kFloat32},
                                                                      {"f32", DType::kFloat32},
                                                                      {"fp64", DType::kFloat64},
                                                                      {"f64", DType::kFloat64}}};
  for (const auto& [text, dtype] : kShort) {
    if (name == text) return dtype;
  }
  return dtype_from_name(name);
}

// The first '=' without a `\` before it, which quotes a character of OLD and NEW (cairn/convert.h).
std::size_t unquoted_equals(std::string_view rename) {
  for (std::size_t i = 0; i < rename.size(); ++i) {
    if (rename[i] == '=') return i;
    if (rename[i] == '\\') ++i;
  }
  return std::string_view::npos;
}

Outcome usage(const std::string& complaint) {
  return {{}, fmt::format("cairn: {}\nTry 'cairn convert --help'.\n", complaint), ExitCode::kUsage};
}

// Fills in `options`; returns the outcome if a word is wrong.
std::optional<Outcome> read_options(const std::filesystem::path& target, const ConversionOptions& given,
                                    ConvertOptions& options) {
  const std::optional<CheckpointFormat> format = given.to.empty() ? format_of_target(target) : format_of(given.to);
  if (!format) return usage("the target's name says no format: --to dcp, --to torch or --to safetensors");
  options.to = *format;
  options.keys = given.keys;
  options.exclude = given.exclude;
  for (const std::string& rename : given.renames) {
    const std::size_t equals = unquoted_equals(rename);
    if (equals == std::string::npos) return usage(fmt::format("--rename takes OLD=NEW, not '{}'", printable(rename)));
    options.renames.push_back({rename.substr(0, equals), rename.substr(equals + 1)});
  }
  for (const std::string& word : given.dtypes) {
    const std::size_t equals = word.rfind('=');
    const std::optional<DType> dtype = dtype_of(equals == std::string::npos ? word : word.substr(equals + 1));
    if (!dtype || !is_floating_point(*dtype)) {
      return usage(fmt::format("--dtype takes bf16, fp16, fp32 or torch's name of a float, or GLOB=bf16, not '{}'",
                               printable(word)));
    }
    if (equals != std::string::npos) {
      options.key_dtypes.push_back({word.substr(0, equals), *dtype});
    } else if (options.dtype) {
      return usage("--dtype without GLOB= applies to all keys: give it once");
    } else {
      options.dtype = dtype;
    }
  }
  if (!given.max_shard_size.empty()) {
    const std::optional<std::uint64_t> bytes = bytes_of(given.max_shard_size);
    if (!bytes) {
      return usage(
          fmt::format("--max-shard-size takes a size like 5GB or 500MiB, not '{}'", printable(given.max_shard_size)));
    }
    options.max_shard_bytes = *bytes;
  }
  options.file_count = given.file_count;
  options.overwrite = given.overwrite;
  options.plain = given.plain;
  options.follow_links = given.follow_links;
  options.allow_pickle = given.allow_pickle;
  return std::nullopt;
}

std::string joined(const std::vector<std::string>& keys) {
  std::string text;
  for (const std::string& key : keys) text += (text.empty() ? "" : ", ") + printable(key);
  return text;
}

std::string text_of(const ConvertReport& report, const std::filesystem::path& target, CheckpointFormat to) {
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{}: {} from {}\n", printable(target.string()), name_of(to), name_of(report.from));
  fmt::format_to(out, "  {} of {}, {}, in {} of {}\n", counted(report.tensors, "tensor"),
                 byte_text(report.tensor_bytes), counted(report.values, "value"), counted(report.files.size(), "file"),
                 byte_text(report.bytes_written));
  if (!report.conversions.empty()) {
    const DType first = report.conversions.front().target;
    const bool is_one = std::all_of(report.conversions.begin(), report.conversions.end(),
                                    [&](const Conversion& conversion) { return conversion.target == first; });
    fmt::format_to(out, "  {} converted to {}\n", counted(report.conversions.size(), "tensor"),
                   is_one ? name_of(first) : "other dtypes");
  }
  for (const TiedTensors& tied : report.tied) {
    fmt::format_to(out, "  tied tensors {}: {}\n", tied.stay_tied ? "stay tied" : "are copies now", joined(tied.keys));
  }
  for (const std::string& warning : report.warnings) fmt::format_to(out, "  warning: {}\n", printable(warning));
  return text;
}

std::string json_of(const ConvertReport& report, const std::filesystem::path& target, CheckpointFormat to) {
  JsonWriter json;
  json.begin_object();
  json.key("target").text(target.string());
  json.key("from").text(name_of(report.from));
  json.key("to").text(name_of(to));
  json.key("directory").text(report.directory.string());
  json.key("files").texts(report.files);
  json.key("tensors").number(report.tensors);
  json.key("values").number(report.values);
  json.key("tensor_bytes").number(report.tensor_bytes);
  json.key("bytes_written").number(report.bytes_written);
  json.key("conversions").begin_array();
  for (const Conversion& conversion : report.conversions) {
    json.begin_object();
    json.key("key").text(conversion.fqn);
    json.key("from").text(name_of(conversion.saved));
    json.key("to").text(name_of(conversion.target));
    json.end_object();
  }
  json.end_array();
  json.key("tied").begin_array();
  for (const TiedTensors& tied : report.tied) {
    json.begin_object();
    json.key("keys").texts(tied.keys);
    json.key("stay_tied").boolean(tied.stay_tied);
    json.end_object();
  }
  json.end_array();
  json.key("warnings").texts(report.warnings);
  json.end_object();
  return std::move(json).take();
}

Outcome conversion_failure(const Error& error) {
  Outcome outcome{{}, message_of(error), exit_code_of_copy(error)};
  outcome.signal = EndingSignals::caught();
  return outcome;
}

}  // namespace

Outcome convert(const std::filesystem::path& source, const std::filesystem::path& target,
                const ConversionOptions& given) {
  ConvertOptions options;
  if (std::optional<Outcome> outcome = read_options(target, given, options)) return *std::move(outcome);
  const EndingSignals signals;
  options.interrupted = [] { return EndingSignals::caught() != 0; };
  const Result<ConvertReport> report = cairn::convert(source, target, options);
  if (!report) return conversion_failure(report.error());
  return {given.json ? json_of(*report, target, options.to) : text_of(*report, target, options.to), {}, ExitCode::kOk};
}

}  // namespace cairn::cli
