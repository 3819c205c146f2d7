// summarize: smallest and largest element, mean, and the counts of NaN and infinities of a tensor.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/result.h>
#include <cairn/tensor_pass.h>
#include <cairn/value.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn {

struct TensorSummary {
  std::uint64_t elements = 0;
  // Both counts are 0 for dtypes that are no real numbers.
  std::uint64_t nan_count = 0;
  std::uint64_t infinity_count = 0;
  // Of the finite elements; nullopt if there are none, and for dtypes that are no real numbers (complex, float4, bits).
  std::optional<double> minimum = {};
  std::optional<double> maximum = {};
  std::optional<double> mean = {};
};

// Reads the tensor once, verified, with bounded memory. 64-bit integers beyond 2^53 are rounded to the nearest double.
// kMissingKey if the checkpoint has no such tensor; kUnsupported for a tensor that only torch can read (quantised).
Result<TensorSummary> summarize(const Checkpoint& checkpoint, std::string_view key,
                                const TensorPassOptions& options = {});

}  // namespace cairn
