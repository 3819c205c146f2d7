// convert. Python's lock is released while the engine works; Ctrl-C stops the engine (interrupt.h).
#include <cairn/convert.h>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bound.h"
#include "call_options.h"
#include "errors.h"
#include "interrupt.h"
#include "text.h"

namespace cairn::python {
namespace {

std::vector<std::string> texts_of(const nb::handle& texts) {
  std::vector<std::string> result;
  for (const nb::handle text : texts) result.push_back(to_utf8(text));
  return result;
}

// The keywords are checked by cairn.conversion.convert().
ConvertOptions options_of(const nb::kwargs& given) {
  ConvertOptions options;
  const std::string to = to_utf8(given["to"]);
  options.to = to == "dcp"     ? CheckpointFormat::kDcp
               : to == "torch" ? CheckpointFormat::kTorchSave
                               : CheckpointFormat::kSafetensors;
  options.keys = texts_of(given["keys"]);
  options.exclude = texts_of(given["exclude"]);
  options.renames = renames_of(given["renames"]);
  if (!given["dtype"].is_none()) options.dtype = static_cast<DType>(nb::cast<std::uint8_t>(given["dtype"]));
  for (const nb::handle pair : given["key_dtypes"]) {
    options.key_dtypes.push_back(
        {to_utf8(pair[nb::int_(0)]), static_cast<DType>(nb::cast<std::uint8_t>(pair[nb::int_(1)]))});
  }
  options.keep_shape = nb::cast<bool>(given["keep_shape"]);
  options.max_shard_bytes = nb::cast<std::uint64_t>(given["max_shard_bytes"]);
  options.file_count = nb::cast<std::size_t>(given["file_count"]);
  options.plain = nb::cast<bool>(given["plain"]);
  options.overwrite = nb::cast<bool>(given["overwrite"]);
  options.overwrite_any_file = nb::cast<bool>(given["overwrite_any_file"]);
  options.durability = nb::cast<bool>(given["durable"]) ? Durability::kDurable : Durability::kBuffered;
  const std::string verify = to_utf8(given["verify"]);
  options.verify = verify == "full" ? Verify::kFull : verify == "none" ? Verify::kNone : Verify::kNeeded;
  options.follow_links = nb::cast<bool>(given["follow_links"]);
  options.allow_pickle = nb::cast<bool>(given["allow_pickle"]);
  options.deadlines = deadlines_of(given["deadlines"]);
  options.thread_count = nb::cast<std::size_t>(given["thread_count"]);
  options.direct_io = nb::cast<bool>(given["direct_io"]);
  return options;
}

nb::dict dict_of(const ConvertReport& report) {
  nb::list conversions;
  for (const Conversion& conversion : report.conversions) {
    conversions.append(nb::make_tuple(to_str(conversion.fqn), static_cast<int>(conversion.saved),
                                      static_cast<int>(conversion.target)));
  }
  nb::list tied;
  for (const TiedTensors& group : report.tied) tied.append(nb::make_tuple(strings(group.keys), group.stay_tied));
  nb::dict result;
  result["source_format"] = to_str(name_of(report.from));
  result["directory"] = nb::bytes(report.directory.c_str(), report.directory.native().size());
  result["files"] = strings(report.files);
  result["tensors"] = report.tensors;
  result["values"] = report.values;
  result["tensor_bytes"] = report.tensor_bytes;
  result["bytes_written"] = report.bytes_written;
  result["conversions"] = conversions;
  result["tied"] = tied;
  result["warnings"] = strings(report.warnings);
  return result;
}

// The keyword `progress` is a callable of (bytes done, bytes in total), or None. An exception of the callable stops the
// conversion, and is raised when the conversion has withdrawn its files.
nb::dict convert_checkpoint(const nb::bytes& source, const nb::bytes& target, const nb::kwargs& keywords) {
  const nb::object progress = keywords["progress"];
  ConvertOptions options = options_of(keywords);
  const std::filesystem::path from = to_filesystem_path(source);
  const std::filesystem::path to = to_filesystem_path(target);
  Interrupt interrupt;
  std::optional<nb::python_error> failure;  // of `progress`
  const auto poll = interrupt.poll_again();
  options.interrupted = [&] { return failure || poll(); };
  if (!progress.is_none()) {
    options.progress = [&](const ConvertProgress& now) {
      if (failure) return;
      const nb::gil_scoped_acquire held;
      try {
        progress(now.bytes_done, now.bytes_total);
      } catch (nb::python_error& error) {
        failure.emplace(std::move(error));
      }
    };
  }
  Result<ConvertReport> report = [&] {
    const nb::gil_scoped_release released;
    return convert(from, to, options);
  }();
  if (failure) throw nb::python_error(std::move(*failure));
  interrupt.rethrow(report);
  return dict_of(unwrap(std::move(report)));
}

}  // namespace

void bind_convert(nb::module_& module) { module.def("convert", &convert_checkpoint); }

}  // namespace cairn::python
