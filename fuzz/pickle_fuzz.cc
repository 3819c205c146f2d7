// Reads any bytes as a pickle: the machine, the values, and back. A value written by Cairn must read equal.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "decoding_bounds.h"
#include "format/pickle/machine.h"
#include "format/pickle/value_reader.h"
#include "format/pickle/value_writer.h"

namespace pickle_fuzz {

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

cairn::Result<cairn::Value> read(std::span<const std::byte> input) {
  namespace pickle = cairn::pickle;
  const cairn::fuzz::DecodingBounds bounds(input.size());
  CAIRN_TRY_ASSIGN(const pickle::Graph graph, pickle::parse(input));
  require(graph.bytes_consumed() <= input.size());
  cairn::ByteBudget budget(input.size());
  CAIRN_TRY(budget.charge(graph.memory_bytes()));
  return pickle::to_value(graph, graph.root(), budget);
}

// Compares NaNs by their bytes: as values two NaNs are unequal.
std::string written(const cairn::Value& value, int protocol, bool& is_writable) {
  cairn::pickle::Writer writer(protocol);
  is_writable = cairn::pickle::write_value(writer, value).has_value();
  writer.stop();
  return std::move(writer).take();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto value = read({reinterpret_cast<const std::byte*>(data), size});
  if (!value) return 0;
  for (const int protocol : {2, 4}) {
    bool is_writable = false;
    const std::string first = written(*value, protocol, is_writable);
    if (!is_writable) continue;
    require(cairn::pickle::parse(std::as_bytes(std::span(first))).has_value());
    const auto same = read(std::as_bytes(std::span(first)));
    if (!same) continue;  // a deep value may be too deep when sets are written as calls
    require(written(*same, protocol, is_writable) == first);
  }
  return 0;
}

}  // namespace pickle_fuzz
