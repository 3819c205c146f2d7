#include "bench.h"

#include <cairn/inspect.h>
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "byte_size.h"
#include "ending_signals.h"
#include "json_writer.h"
#include "printable.h"

namespace cairn::cli {
namespace {

std::string text_of(const BenchReport& report) {
  const auto line = [](const char* name, double raw, double ours, double ratio) {
    return fmt::format("{:<5} {:>9.2f} GB/s {:>9.2f} GB/s {:>7.2f}\n", name, raw / 1e9, ours / 1e9, ratio);
  };
  const BenchRates& median = report.median;
  return fmt::format("state: {} in {}; medians of {}; the raw file {} the page cache\n", byte_text(report.bytes),
                     counted(report.tensors, "tensor"), counted(report.rounds.size(), "round"),
                     report.is_direct ? "bypasses" : "goes through") +
         fmt::format("{:<5} {:>14} {:>14} {:>7}\n", "", "raw device", "cairn", "ratio") +
         line("save", median.raw_write, median.save, report.save_ratio) +
         line("load", median.raw_read, median.load, report.load_ratio);
}

void write_rates(JsonWriter& json, const BenchRates& rates) {
  json.begin_object();
  json.key("raw_write").number(rates.raw_write);
  json.key("save").number(rates.save);
  json.key("raw_read").number(rates.raw_read);
  json.key("load").number(rates.load);
  json.end_object();
}

std::string json_of(const BenchReport& report, const std::filesystem::path& directory) {
  JsonWriter json;
  json.begin_object();
  json.key("directory").text(directory.string());
  json.key("bytes").number(report.bytes);
  json.key("tensors").number(std::uint64_t{report.tensors});
  json.key("is_direct").boolean(report.is_direct);
  json.key("rounds").begin_array();
  for (const BenchRates& rates : report.rounds) write_rates(json, rates);
  json.end_array();
  json.key("median");
  write_rates(json, report.median);
  json.key("save_ratio").number(report.save_ratio);
  json.key("load_ratio").number(report.load_ratio);
  json.end_object();
  return std::move(json).take();
}

}  // namespace

Outcome measure(const std::filesystem::path& directory, const std::string& size, bool json) {
  BenchOptions options;
  if (!size.empty()) {
    const std::optional<std::uint64_t> bytes = bytes_of(size);
    if (!bytes) {
      return {{},
              fmt::format("cairn: --bytes takes a size like 500MiB or 4GB, not '{}'\n", printable(size)),
              ExitCode::kUsage};
    }
    options.bytes = *bytes;
  }
  const EndingSignals signals;
  options.interrupted = [] { return EndingSignals::caught() != 0; };
  const Result<BenchReport> report = bench_directory(directory, options);
  Outcome outcome;
  outcome.signal = EndingSignals::caught();
  if (!report) {
    outcome.messages = message_of(report.error());
    const bool is_usage = report.error().code() == ErrorCode::kInvalidArgument;
    outcome.exit_code = is_usage ? ExitCode::kUsage : ExitCode::kUnreadable;
    return outcome;
  }
  outcome.data = json ? json_of(*report, directory) : text_of(*report);
  return outcome;
}

}  // namespace cairn::cli
