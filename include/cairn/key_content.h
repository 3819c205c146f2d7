// read_key: the content of a checkpoint under a key: a value, or the summary of a tensor.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>
#include <cairn/tensor_pass.h>
#include <cairn/value.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <variant>

namespace cairn {

struct TensorSummary {
  // The meaning of the elements. Only real numbers have an order.
  enum class Numbers : std::uint8_t {
    kReal,     // integers and bool included
    kComplex,  // no minimum, maximum and mean
    kNone,     // float4, bits: no number at all
  };
  Numbers numbers = Numbers::kReal;
  std::uint64_t elements = 0;
  // Of complex numbers: elements of which a part is NaN; else of which a part is infinite. 0 for kNone.
  std::uint64_t nan_count = 0;
  std::uint64_t infinity_count = 0;
  // Of the finite elements; nullopt if there are none, and for kComplex and kNone. Minimum and maximum are exact:
  // integers and bool are int64, elements of uint64 are uint64, all floats are double.
  using Number = std::variant<double, std::int64_t, std::uint64_t>;
  std::optional<Number> minimum = {};
  std::optional<Number> maximum = {};
  std::optional<double> mean = {};
};
std::string_view name_of(TensorSummary::Numbers numbers);  // "real", "complex", "none"

// Either `value`, or `tensor` and `summary`.
struct KeyContent {
  std::optional<Value> value = {};
  std::optional<CatalogTensor> tensor = {};
  TensorSummary summary = {};
};

// Opens the checkpoint `directory`, of any format, and reads the key: a tensor once, verified, with bounded memory.
// kMissingKey if the checkpoint has no such key;
// kUnsupported for a tensor that only torch can read (quantised); kUnsafe for a tensor of a torch.save file that
// repeats few elements very often.
Result<KeyContent> read_key(const std::filesystem::path& directory, std::string_view key,
                            const TensorPassOptions& options = {});

}  // namespace cairn
