// Any bytes as a pickle: the machine, the values, and back: what we write of a value reads as the same value.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "format/pickle/machine.h"
#include "format/pickle/value_reader.h"
#include "format/pickle/value_writer.h"

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

// Two NaNs are not equal as values, but are as bytes.
std::string written(const cairn::Value& value, int protocol, bool& is_writable) {
  cairn::pickle::Writer writer(protocol);
  is_writable = cairn::pickle::write_value(writer, value).has_value();
  writer.stop();
  return std::move(writer).take();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace pickle = cairn::pickle;
  const std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data), size);
  const auto graph = pickle::parse(input);
  if (!graph) return 0;
  require(graph->bytes_consumed() <= size);
  const auto value = pickle::to_value(*graph, graph->root());
  if (!value) return 0;
  for (const int protocol : {2, 4}) {
    bool is_writable = false;
    const std::string first = written(*value, protocol, is_writable);
    if (!is_writable) continue;
    const auto again = pickle::parse(std::as_bytes(std::span(first)));
    require(again.has_value());
    const auto same = pickle::to_value(*again, again->root());
    if (!same) continue;  // what was deep already may be too deep, once sets are calls
    require(written(*same, protocol, is_writable) == first);
  }
  return 0;
}
