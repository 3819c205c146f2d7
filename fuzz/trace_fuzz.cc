// Reads any bytes as the trace file of a process, and merges it: the result is JSON, and reads as a trace again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "decoding_bounds.h"
#include "events/trace_merge.h"
#include "format/json/json_reader.h"

namespace trace_fuzz {

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view content(reinterpret_cast<const char*>(data), size);
  const cairn::fuzz::DecodingBounds bounds(2 * size);
  cairn::events::TraceMerge merge;
  merge.add("a", content);
  merge.add("b", content);
  const cairn::MergedTrace merged = std::move(merge).merge();
  cairn::json::JsonReader reader(merged.json, 0);
  if (!reader.skip_value() || !reader.end()) std::abort();
  return 0;
}

}  // namespace trace_fuzz
