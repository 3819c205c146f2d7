#include <cairn/inspect.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "checkpoint/tensor_windows.h"
#include "core/conversion.h"
#include "core/element_comparison.h"
#include "inspect/tensor_pass.h"

namespace cairn {
namespace {

using checkpointer::TensorWindow;
using storage::Watch;
using Numbers = TensorSummary::Numbers;

Numbers numbers_of(DType dtype) {
  if (compares_as_numbers(dtype, DType::kComplex128)) return Numbers::kComplex;
  return is_convertible(dtype, DType::kFloat64) ? Numbers::kReal : Numbers::kNone;
}

// Number: the type of the minimum and the maximum, which holds each element exactly; double for complex elements.
template <typename Number>
struct WindowSummary {
  std::uint64_t nan_count = 0;
  std::uint64_t infinity_count = 0;
  std::uint64_t finite_count = 0;
  Number minimum = 0;
  Number maximum = 0;
  long double sum = 0;

  void add(Number number) {
    if constexpr (std::is_floating_point_v<Number>) {
      if (std::isnan(number)) return void(++nan_count);
      if (std::isinf(number)) return void(++infinity_count);
    }
    minimum = finite_count == 0 ? number : std::min(minimum, number);
    maximum = finite_count == 0 ? number : std::max(maximum, number);
    ++finite_count;
    sum += static_cast<long double>(number);
  }
  void add_complex(double real, double imaginary) {
    if (std::isnan(real) || std::isnan(imaginary)) return void(++nan_count);
    if (std::isinf(real) || std::isinf(imaginary)) ++infinity_count;
  }
  void add(const WindowSummary& other) {
    nan_count += other.nan_count;
    infinity_count += other.infinity_count;
    if (other.finite_count == 0) return;
    minimum = finite_count == 0 ? other.minimum : std::min(minimum, other.minimum);
    maximum = finite_count == 0 ? other.maximum : std::max(maximum, other.maximum);
    finite_count += other.finite_count;
    sum += other.sum;
  }
};

// The elements become elements of dtype `common`, whose parts are of type Number.
template <typename Number>
WindowSummary<Number> summary_of(DType dtype, DType common, std::span<const std::byte> bytes) {
  WindowSummary<Number> summary;
  const bool is_complex = common == DType::kComplex128;
  const std::size_t item = item_bytes(dtype);
  std::vector<Number> numbers(1024);
  const std::size_t batch = numbers.size() / (is_complex ? 2 : 1);
  for (std::size_t done = 0; done < bytes.size() / item; done += batch) {
    const std::size_t count = std::min(batch, bytes.size() / item - done);
    convert(dtype, common, {bytes.data() + done * item, 1, reinterpret_cast<std::byte*>(numbers.data()), 1},
            static_cast<std::int64_t>(count));
    for (std::size_t i = 0; i < count; ++i) {
      if (is_complex) {
        summary.add_complex(static_cast<double>(numbers[2 * i]), static_cast<double>(numbers[2 * i + 1]));
      } else {
        summary.add(numbers[i]);
      }
    }
  }
  return summary;
}

template <typename Number>
Result<TensorSummary> summarize_as(DType common, const Checkpoint& checkpoint, const CatalogTensor& tensor,
                                   const TensorPassOptions& options, Watch& watch) {
  TensorSummary summary;
  summary.numbers = numbers_of(tensor.dtype);
  std::mutex mutex;
  std::map<std::size_t, WindowSummary<Number>> windows;  // added in their order: the threads do not change the sum
  const auto visit = [&](const TensorWindow& window) -> Result<void> {
    if (summary.numbers == Numbers::kNone) return {};
    const WindowSummary<Number> of_window = summary_of<Number>(tensor.dtype, common, window.bytes);
    const std::lock_guard lock(mutex);
    windows.emplace(window.index, of_window);
    return {};
  };
  CAIRN_TRY(checkpointer::for_each_window(checkpoint, tensor, options, watch, visit));
  WindowSummary<Number> all;
  for (const auto& [index, window] : windows) all.add(window);
  summary.elements = static_cast<std::uint64_t>(*element_count(tensor.shape));
  summary.nan_count = all.nan_count;
  summary.infinity_count = all.infinity_count;
  if (all.finite_count == 0) return summary;
  summary.minimum = all.minimum;
  summary.maximum = all.maximum;
  summary.mean = static_cast<double>(all.sum / static_cast<long double>(all.finite_count));
  return summary;
}

Result<TensorSummary> summarize(const Checkpoint& checkpoint, const CatalogTensor& tensor,
                                const TensorPassOptions& options, Watch& watch) {
  const bool is_complex = numbers_of(tensor.dtype) == Numbers::kComplex;
  if (is_complex) return summarize_as<double>(DType::kComplex128, checkpoint, tensor, options, watch);
  if (tensor.dtype == DType::kUInt64) {
    return summarize_as<std::uint64_t>(DType::kUInt64, checkpoint, tensor, options, watch);
  }
  if (numbers_of(tensor.dtype) == Numbers::kReal && !is_floating_point(tensor.dtype)) {
    return summarize_as<std::int64_t>(DType::kInt64, checkpoint, tensor, options, watch);
  }
  return summarize_as<double>(DType::kFloat64, checkpoint, tensor, options, watch);
}

// Runs on the working thread, and calls neither function of `options`.
Result<KeyContent> read_watched(const std::filesystem::path& directory, const std::string& key,
                                const TensorPassOptions& options, Watch& watch) {
  CAIRN_TRY_ASSIGN(const Checkpoint checkpoint, checkpointer::open_source(directory, watch));
  KeyContent content;
  CAIRN_TRY_ASSIGN(const std::optional<KeyEntry> entry, checkpoint.entry(key));
  if (entry && std::holds_alternative<CatalogValue>(*entry)) {
    CAIRN_TRY_ASSIGN(content.value, checkpoint.read_value(key, {.follow_links = options.follow_links}));
    return content;
  }
  CAIRN_TRY_ASSIGN(content.tensor, checkpointer::require_tensor(checkpoint, key));
  CAIRN_TRY_ASSIGN(content.summary, summarize(checkpoint, *content.tensor, options, watch));
  return content;
}

}  // namespace

std::string_view name_of(TensorSummary::Numbers numbers) {
  switch (numbers) {
    case Numbers::kReal: return "real";
    case Numbers::kComplex: return "complex";
    default: return "none";
  }
}

Result<KeyContent> read_key(const std::filesystem::path& directory, std::string_view key,
                            const TensorPassOptions& options) {
  const auto pass = [directory, key = std::string(key)](Watch& watch, const TensorPassOptions& copied) {
    return read_watched(directory, key, copied, watch);
  };
  return checkpointer::watched_pass(WorkKind::kRead, directory, "reading the key", options, pass);
}

}  // namespace cairn
