#include "checkpointer/tensor_windows.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "checkpointer/element_reader.h"
#include "checkpointer/missing_keys.h"
#include "os/page_buffer.h"
#include "os/parallel.h"

namespace cairn::checkpointer {
namespace {

constexpr std::size_t kWindowBytes = 4 * 1024 * 1024;

}  // namespace

Result<const CatalogTensor*> require_tensor(const Checkpoint& checkpoint, std::string_view key) {
  const Catalog& catalog = checkpoint.catalog();
  if (const CatalogTensor* tensor = catalog.find_tensor(key)) return tensor;
  if (catalog.find_value(key) != nullptr) {
    return Error(ErrorCode::kInvalidArgument, "the key is not of a tensor").key(key).actual("a value");
  }
  return missing_keys(catalog, {std::string(key)});
}

Result<void> for_each_window(const Checkpoint& checkpoint, const CatalogTensor& tensor,
                             const TensorPassOptions& options,
                             const std::function<Result<void>(const TensorWindow&)>& visit) {
  os::StopFlag interrupted;
  RecordChecks checks(interrupted);
  const auto opened = ElementReader::open(checkpoint.impl(), tensor, checks, options.follow_links);
  if (!opened) return checkpoint.impl().replaced_or(opened.error());
  const ElementReader& reader = *opened;
  const std::int64_t count = *element_count(tensor.shape);  // the reader has checked the shape
  const std::int64_t step = reader.elements_per_read(kWindowBytes);
  const std::size_t bytes_each = item_bytes(tensor.dtype);
  std::atomic<std::int64_t> next{0};
  std::atomic<std::uint64_t> bytes_done{0};
  const auto poll = [&] {
    if (options.progress) options.progress(bytes_done, static_cast<std::uint64_t>(count) * bytes_each);
    if (options.interrupted && options.interrupted()) interrupted.set();
    return interrupted.is_set();
  };
  const auto work = [&](std::size_t, os::StopFlag& stop) -> Result<void> {
    const os::PageBuffer buffer(kWindowBytes);
    while (!stop.is_set()) {
      const std::int64_t index = next.fetch_add(1);
      if (index >= (count + step - 1) / step) break;
      const plan::FlatRange range{index * step, std::min(count, (index + 1) * step)};
      const auto bytes = buffer.span().first(static_cast<std::size_t>(range.count()) * bytes_each);
      CAIRN_TRY(reader.read(range, bytes.data()));
      CAIRN_TRY(visit({static_cast<std::size_t>(index), range, bytes}));
      bytes_done += bytes.size();
    }
    return {};
  };
  if (auto done = os::run_parallel(std::max<std::size_t>(options.thread_count, 1), poll, work); !done) {
    return checkpoint.impl().replaced_or(done.error());
  }
  return {};
}

}  // namespace cairn::checkpointer
