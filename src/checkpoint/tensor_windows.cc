#include "checkpoint/tensor_windows.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "checkpoint/element_reader.h"
#include "checkpoint/expansion_limit.h"
#include "checkpoint/missing_keys.h"
#include "checkpoint/open_calls.h"
#include "core/checked.h"
#include "data_file/record_checks.h"
#include "os/page_buffer.h"
#include "os/parallel.h"

namespace cairn::checkpointer {
namespace {

constexpr std::size_t kWindowBytes = 4 * 1024 * 1024;
// An error names near keys among so many keys: the keys of very large checkpoints take gigabytes.
constexpr std::uint64_t kNearKeysMax = std::uint64_t{1} << 18;

}  // namespace

Result<Checkpoint> open_source(const std::filesystem::path& directory, const storage::Watch& watch) {
  return open_with(watched_directories(watch.operations), directory, std::string(kMetadataName), Decoding::kWanted);
}

Result<CatalogTensor> require_tensor(const Checkpoint& checkpoint, std::string_view key) {
  CAIRN_TRY_ASSIGN(std::optional<KeyEntry> entry, checkpoint.entry(key));
  if (!entry) {
    CAIRN_TRY_ASSIGN(const Catalog outline, checkpoint.outline(kNearKeysMax));
    return missing_keys(outline, {std::string(key)});
  }
  auto* tensor = std::get_if<CatalogTensor>(&*entry);
  if (tensor == nullptr) {
    return Error(ErrorCode::kInvalidArgument, "the key is not of a tensor").key(key).actual("a value");
  }
  CAIRN_TRY_ASSIGN(const std::int64_t count, element_count(tensor->shape));
  const auto bytes = checked_multiply<std::uint64_t>(static_cast<std::uint64_t>(count), item_bytes(tensor->dtype));
  auto limit = ExpansionLimit::of(checkpoint);
  if (!limit) return checkpoint.impl().replaced_or(std::move(limit).error());
  CAIRN_TRY(limit->add(*tensor, bytes.value_or(UINT64_MAX)));
  return std::move(*tensor);
}

Result<void> for_each_window(const Checkpoint& checkpoint, const CatalogTensor& tensor,
                             const TensorPassOptions& options, storage::Watch& watch,
                             const std::function<Result<void>(const TensorWindow&)>& visit) {
  const auto explain = [&](Error error) { return checkpoint.impl().replaced_or(std::move(error)); };
  CAIRN_TRY_ASSIGN(const std::int64_t count, element_count(tensor.shape));
  const std::size_t bytes_each = item_bytes(tensor.dtype);
  const auto opened = ElementReader::open(checkpoint.impl(), tensor, options.follow_links);
  if (!opened) return explain(opened.error());
  const ElementReader& reader = *opened;
  const std::int64_t step = reader.elements_per_read(kWindowBytes);
  data_file::RecordChecks checks(watch.stop);
  std::atomic<std::int64_t> next{0};
  watch.bytes_total = static_cast<std::uint64_t>(count) * bytes_each;  // require_tensor() has bounded the product
  const auto work = [&](std::size_t, os::StopFlag& stop) -> Result<void> {
    const os::PageBuffer buffer(kWindowBytes);
    while (!stop.is_set()) {
      const std::int64_t index = next.fetch_add(1);
      if (index >= (count + step - 1) / step) break;
      const plan::FlatRange range{index * step, std::min(count, (index + 1) * step)};
      const auto window = buffer.span().first(static_cast<std::size_t>(range.count()) * bytes_each);
      CAIRN_TRY(reader.read(range, window.data(), checks));
      CAIRN_TRY(visit({static_cast<std::size_t>(index), range, window}));
      watch.bytes_done += window.size();
    }
    return {};
  };
  const std::size_t threads = std::max<std::size_t>(options.thread_count, 1);
  Result<void> done = os::run_parallel(
      threads, [&watch] { return watch.stop.is_set(); }, work);
  if (done) done = checks.finish(data_file::RecordChecks::Which::kAll, threads);
  if (!done) return explain(std::move(done).error());
  return {};
}

}  // namespace cairn::checkpointer
