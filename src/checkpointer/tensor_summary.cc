#include <cairn/tensor_summary.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <vector>

#include "checkpointer/tensor_windows.h"
#include "core/conversion.h"
#include "core/element_comparison.h"

namespace cairn {
namespace {

struct WindowSummary {
  std::uint64_t nan_count = 0;
  std::uint64_t infinity_count = 0;
  std::uint64_t finite_count = 0;
  double minimum = 0;
  double maximum = 0;
  long double sum = 0;

  void add(double number) {
    if (std::isnan(number)) return void(++nan_count);
    if (std::isinf(number)) return void(++infinity_count);
    minimum = finite_count == 0 ? number : std::min(minimum, number);
    maximum = finite_count == 0 ? number : std::max(maximum, number);
    ++finite_count;
    sum += number;
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

WindowSummary summary_of(DType dtype, std::span<const std::byte> bytes) {
  WindowSummary summary;
  const std::size_t item = item_bytes(dtype);
  std::vector<double> numbers(1024);
  for (std::size_t done = 0; done < bytes.size() / item; done += numbers.size()) {
    const std::size_t count = std::min(numbers.size(), bytes.size() / item - done);
    convert(dtype, DType::kFloat64, {bytes.data() + done * item, 1, reinterpret_cast<std::byte*>(numbers.data()), 1},
            static_cast<std::int64_t>(count));
    for (std::size_t i = 0; i < count; ++i) summary.add(numbers[i]);
  }
  return summary;
}

}  // namespace

Result<TensorSummary> summarize(const Checkpoint& checkpoint, std::string_view key, const TensorPassOptions& options) {
  const CatalogTensor* tensor = nullptr;
  CAIRN_TRY_ASSIGN(tensor, checkpointer::require_tensor(checkpoint, key));
  const bool is_complex = compares_as_numbers(tensor->dtype, DType::kComplex128);
  const bool is_real = is_convertible(tensor->dtype, DType::kFloat64) && !is_complex;
  std::mutex mutex;
  std::map<std::size_t, WindowSummary> windows;  // added in their order: the sum does not depend on the threads
  const auto visit = [&](const checkpointer::TensorWindow& window) -> Result<void> {
    if (!is_real) return {};
    const WindowSummary summary = summary_of(tensor->dtype, window.bytes);
    const std::lock_guard lock(mutex);
    windows.emplace(window.index, summary);
    return {};
  };
  CAIRN_TRY(checkpointer::for_each_window(checkpoint, *tensor, options, visit));
  WindowSummary all;
  for (const auto& [index, window] : windows) all.add(window);
  TensorSummary summary{static_cast<std::uint64_t>(*element_count(tensor->shape)), all.nan_count, all.infinity_count};
  if (all.finite_count == 0) return summary;
  summary.minimum = all.minimum;
  summary.maximum = all.maximum;
  summary.mean = static_cast<double>(all.sum / static_cast<long double>(all.finite_count));
  return summary;
}

}  // namespace cairn
