#include "load/loader.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "checkpoint/chunk_read.h"
#include "checkpoint/missing_keys.h"
#include "checkpoint/recorded_dtypes.h"
#include "core/byte_units.h"
#include "core/conversion.h"
#include "data_file/tensor_reader.h"
#include "os/memory_limits.h"
#include "os/process_identity.h"

namespace cairn::checkpointer {
namespace {

// The most bytes that the sharers of a host together keep in the page cache. With less room than the second number, a
// rank shares nothing: the page cache could lose bytes before all sharers have read the bytes.
constexpr std::uint64_t kSharedCacheBytesMax = 2048 * kMiB;
constexpr std::uint64_t kSharedCacheBytesMin = 128 * kMiB;
// The part of the free memory that these bytes may take.
constexpr std::uint64_t kSharedCachePart = 4;

Error while_filling(Error error) {
  if (error.code() != ErrorCode::kCorrupt) return error;
  return std::move(error).while_doing("filling the targets, which are partly written");
}

// A shape in torch's notation.
std::string size_text(const Extents& shape) { return "torch.Size(" + to_string(shape) + ")"; }

Error kind_differs(const Entry& entry, std::string_view expected, std::string_view actual) {
  return Error(ErrorCode::kInvalidArgument, "the kind of the entry in the checkpoint differs from the target's")
      .key(entry.fqn)
      .expected(expected)
      .actual(actual);
}

}  // namespace

Result<void> Loader::prepare() {
  CAIRN_TRY(devices_.mark(state_.entries()));
  CAIRN_TRY_ASSIGN(names_, StoredNames::of(checkpoint_, options_.renames));
  CAIRN_TRY_ASSIGN(entries_, WantedEntries::of(impl_, state_.entries(), names_, options_.allow_partial));
  for (std::size_t i = 0; i < state_.entries().size(); ++i) {
    Entry& entry = state_.entries()[i];
    const std::string* const key = names_.find(entry.fqn);
    const CatalogTensor* tensor = key == nullptr ? nullptr : entries_->tensor(*key);
    const CatalogValue* value = key == nullptr ? nullptr : entries_->value(*key);
    if (tensor == nullptr && value == nullptr) {
      report_.missing.push_back(entry.fqn);
      continue;
    }
    if (!options_.allow_partial && !report_.missing.empty()) continue;
    if (auto target = std::get_if<TensorEntry>(&entry.content)) {
      if (tensor == nullptr) return kind_differs(entry, "a tensor", "a value");
      CAIRN_TRY(plan_tensor(*tensor, *target, i));
    } else {
      const bool wants_tensor = std::holds_alternative<SerializedTensor>(entry.content);
      if (wants_tensor && tensor == nullptr) return kind_differs(entry, "a tensor", "a value");
      if (!wants_tensor && value == nullptr) return kind_differs(entry, "a value", "a tensor");
      values_.push_back({i, key, {}, {}});
    }
  }
  if (!options_.allow_partial && !report_.missing.empty()) {
    const Catalog* whole = nullptr;
    CAIRN_TRY_ASSIGN(whole, impl_.whole_catalog());
    return missing_keys(*whole, report_.missing);
  }
  for (NewValue& value : values_) CAIRN_TRY(read_value(value));
  for (const Archive& archive : archives_) CAIRN_TRY(hand_over(archive));
  mark_overlaps();
  return {};
}

Loader::CommonNumbers Loader::common_numbers() {
  CommonNumbers numbers;
  const std::size_t rank_count = options_.collectives == nullptr ? 1 : options_.collectives->size();
  numbers.filter = ReadFilter(rank_count, 0);
  if (rank_count == 1 || options_.own_checkpoint) return numbers;
  const std::uint64_t room = os::MemoryLimits().room(kSharedCachePart * kSharedCacheBytesMax).bytes;
  shared_cache_bytes_ = std::min(kSharedCacheBytesMax, room / kSharedCachePart);
  if (shared_cache_bytes_ >= kSharedCacheBytesMin) {
    const std::string host = os::ProcessIdentity::mine().boot_id;
    numbers.of_host = SharedReads::numbers_of(reads_, groups_, host);
    numbers.filter = SharedReads::filter_of(reads_, host, rank_count);
  }
  if (options_.broadcast_replicas) {
    broadcast_.emplace().take(reads_, groups_, broadcast_options());
    numbers.of_job = broadcast_->numbers();
  }
  return numbers;
}

Result<void> Loader::mark_common(const std::vector<CommonNumbers>& by_rank, std::size_t rank) {
  std::vector<SharedReads::Numbers> of_host;
  std::vector<BroadcastReads::Numbers> of_job;
  std::vector<ReadFilter> filters;
  for (const CommonNumbers& numbers : by_rank) {
    of_host.push_back(numbers.of_host);
    of_job.push_back(numbers.of_job);
    filters.push_back(numbers.filter);
  }
  if (broadcast_) CAIRN_TRY(broadcast_->choose(of_job, of_host, *options_.collectives, reads_, groups_));
  SharedReads::mark(reads_, groups_, of_host, filters, rank);
  std::uint32_t sharers = 1;
  for (const data_file::TensorRead& read : reads_) sharers = std::max(sharers, read.sharers().count);
  // Without direct I/O a load leaves in the page cache what the load reads.
  if (sharers > 1 && options_.direct_io) brought_.emplace(shared_cache_bytes_ / sharers);
  return {};
}

Result<LoadReport> Loader::execute() {
  if (broadcast_) CAIRN_TRY(execute_broadcasts());
  if (is_stopped_) return std::move(report_);
  CAIRN_TRY(execute_reads());
  CAIRN_TRY(devices_.finish(options_.interrupted));
  for (NewValue& value : values_) put_into_place(value);
  return take_report();
}

LoadReport Loader::take_report() {
  if (const auto damage = impl_.damage()) report_.warnings.push_back(*damage);
  if (!stale_.empty()) report_.warnings.push_back(stale_dtypes_warning(stale_));
  if (const auto refusal = devices_.untold_refusal()) report_.warnings.push_back(*refusal);
  return std::move(report_);
}

Result<void> Loader::execute_broadcasts() {
  const BroadcastOutcome outcome = broadcast_->run();
  has_left_ = outcome.has_left();
  if (outcome.failure) return while_filling(*outcome.failure);
  is_stopped_ = outcome.is_stopped;
  report_.bytes_needed += broadcast_->bytes_needed();
  report_.bytes_read += outcome.bytes_read;
  return {};
}

Result<void> Loader::execute_reads() {
  data_file::ReadOptions read_options = options_of_reads();
  read_options.interrupted = options_.interrupted;
  const Result<data_file::ReadCounts> counts = data_file::read_tensors(reads_, read_options);
  if (!counts) return while_filling(counts.error());
  report_.bytes_needed += counts->bytes_needed;
  report_.bytes_read += counts->bytes_read;
  return {};
}

data_file::ReadOptions Loader::options_of_reads() {
  data_file::ReadOptions read_options;
  read_options.verify = options_.verify;
  // One thread fills targets that share memory: the shared bytes then come whole from the last target.
  read_options.thread_count = targets_overlap_ ? 1 : options_.thread_count;
  read_options.direct_io = options_.direct_io;
  read_options.devices = &devices_;
  read_options.brought = brought_ ? &*brought_ : nullptr;
  read_options.count = count_.get();
  return read_options;
}

// Sorts the reads by the places of their entries in `order`; entries that `order` lacks come last.
void Loader::sort_reads(std::span<const std::size_t> order) {
  std::vector<std::size_t> places(state_.entries().size(), order.size());
  for (std::size_t i = order.size(); i-- > 0;) {
    if (order[i] < places.size()) places[order[i]] = i;
  }
  std::vector<std::size_t> reads(reads_.size());
  std::iota(reads.begin(), reads.end(), std::size_t{0});
  std::stable_sort(reads.begin(), reads.end(), [&](std::size_t a, std::size_t b) {
    return places[entries_of_reads_[a]] < places[entries_of_reads_[b]];
  });
  std::vector<data_file::TensorRead> sorted;
  std::vector<std::size_t> entries;
  sorted.reserve(reads.size());
  for (const std::size_t read : reads) {
    sorted.push_back(std::move(reads_[read]));
    entries.push_back(entries_of_reads_[read]);
  }
  reads_ = std::move(sorted);
  entries_of_reads_ = std::move(entries);
}

Result<LoadReport> Loader::fill(std::span<const std::size_t> order, const EntryFilled& filled,
                                const std::function<bool()>& cancelled) {
  sort_reads(order);
  for (NewValue& value : values_) put_into_place(value);
  FilledEntries entries(state_.entries().size(), entries_of_reads_, [&](std::size_t entry, Result<void> outcome) {
    const auto* const target = std::get_if<TensorEntry>(&state_.entries()[entry].content);
    const bool is_on_device = target != nullptr && !target->local.device.is_cpu();
    if (outcome && is_on_device) outcome = devices_.settle(cancelled);
    filled(entry, outcome);
  });
  for (const std::string& fqn : report_.missing) entries.leave_out(fqn, state_.entries());
  entries.tell_those_without_reads(order);
  data_file::ReadOptions read_options = options_of_reads();
  read_options.interrupted = cancelled;
  read_options.ended = [&](std::size_t read, const Result<void>& outcome) {
    entries.end_read(entries_of_reads_[read], outcome ? outcome : Result<void>(while_filling(outcome.error())));
  };
  const Result<data_file::ReadCounts> counts = data_file::read_tensors(reads_, read_options);
  if (!counts) entries.end_all(while_filling(counts.error()));
  if (counts) report_.bytes_needed += counts->bytes_needed;
  if (counts) report_.bytes_read += counts->bytes_read;
  if (const std::optional<Error> failure = entries.first_failure()) return *failure;
  return take_report();
}

BroadcastOptions Loader::broadcast_options() {
  BroadcastOptions broadcast;
  broadcast.verify = options_.verify;
  broadcast.devices = &devices_;
  broadcast.direct_io = options_.direct_io;
  broadcast.interrupted = options_.interrupted;
  broadcast.count = count_.get();
  return broadcast;
}

Result<void> Loader::check_dtype(const CatalogTensor& tensor, DType saved, DType target) {
  if (saved == target) return {};
  const bool floats = is_floating_point(saved) && is_floating_point(target);
  if (!floats && !options_.allow_cast) {
    return Error(ErrorCode::kInvalidArgument,
                 "the dtype of the checkpoint differs from the target's; a cast must be allowed (option allow_cast)")
        .key(tensor.fqn)
        .expected(name_of(target))
        .actual(name_of(saved));
  }
  if (!is_convertible(saved, target)) {
    return Error(ErrorCode::kUnsupported, "no conversion between these dtypes")
        .key(tensor.fqn)
        .expected(name_of(target))
        .actual(name_of(saved));
  }
  report_.conversions.push_back({tensor.fqn, saved, target});
  return {};
}

const plan::ChunkIndex& Loader::index_of(const CatalogTensor& tensor) {
  return indexes_.try_emplace(&tensor, tensor).first->second;
}

Result<void> Loader::plan_tensor(const CatalogTensor& tensor, const TensorEntry& target, std::size_t entry) {
  if (!(tensor.shape == target.global_shape)) {
    return Error(ErrorCode::kInvalidArgument, "Size mismatch between saved " + size_text(tensor.shape) +
                                                  " and current: " + size_text(target.global_shape))
        .key(tensor.fqn)
        .expected(to_string(target.global_shape))
        .actual(to_string(tensor.shape));
  }
  DType checked = tensor.dtype;
  bool is_checked = !may_have_stale_dtypes(impl_);
  if (is_checked) CAIRN_TRY(check_dtype(tensor, checked, target.local.dtype));
  CAIRN_TRY_ASSIGN(const std::vector<plan::ReadItem> items, index_of(tensor).reads_for(target.box));
  for (const plan::ReadItem& item : items) {
    const data_file::DataFile* file = nullptr;
    CAIRN_TRY_ASSIGN(file, impl_.file_of(tensor.locations[item.chunk], tensor.fqn, options_.follow_links));
    Result<StoredTensor> stored = file->tensor(tensor, item.chunk);
    if (!stored && stored.error().code() == ErrorCode::kUnsupported && options_.take_archive) {
      archives_.push_back({entry, &tensor, item});
      continue;
    }
    if (!stored) return std::move(stored).error();
    if (!is_checked || stored->dtype != checked) {
      checked = stored->dtype;
      is_checked = true;
      CAIRN_TRY(check_dtype(tensor, checked, target.local.dtype));
      if (checked != tensor.dtype && (stale_.empty() || stale_.back() != tensor.fqn)) stale_.push_back(tensor.fqn);
    }
    CAIRN_TRY(check_shared_record(tensor, item, *file, *stored));
    reads_.push_back(chunk_read(tensor, item, {target.local, target.box}, *file, *std::move(stored)));
    entries_of_reads_.push_back(entry);
    groups_.push_back(group_of(reads_.back(), target.box.sizes() == tensor.shape));
  }
  if (!is_checked) CAIRN_TRY(check_dtype(tensor, checked, target.local.dtype));
  return {};
}

Result<void> Loader::check_shared_record(const CatalogTensor& tensor, const plan::ReadItem& item,
                                         const data_file::DataFile& file, StoredTensor& stored) {
  const bool is_shared = file.state_file() != nullptr;
  const auto bytes = static_cast<std::uint64_t>(item.overlap.element_count()) * item_bytes(stored.dtype);
  if (!is_shared || options_.verify != Verify::kFull || bytes == stored.record_bytes) return {};
  CAIRN_TRY(record_checks_.check(file, tensor.fqn, stored));
  stored.record_crc.reset();
  return {};
}

void Loader::mark_overlaps() {
  struct Range {
    std::intptr_t begin, end;
    data_file::TensorRead* read;
  };
  std::vector<Range> ranges;
  ranges.reserve(reads_.size());
  for (data_file::TensorRead& read : reads_) {
    const TensorView& target = read.target();
    const auto item = static_cast<std::int64_t>(item_bytes(target.dtype));
    std::intptr_t begin = reinterpret_cast<std::intptr_t>(target.data);
    std::intptr_t end = begin + item;
    for (std::size_t i = 0; i < target.sizes.size(); ++i) {
      const std::int64_t reach = (target.sizes[i] - 1) * target.strides[i] * item;
      (reach < 0 ? begin : end) += reach;
    }
    ranges.push_back({begin, end, &read});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::size_t last = 0;  // of the ranges before `i`, the range that ends last
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin < ranges[last].end) {
      ranges[i].read->keep_order();
      ranges[last].read->keep_order();
      targets_overlap_ = true;
    }
    if (ranges[i].end > ranges[last].end) last = i;
  }
}

Result<void> Loader::read_value(NewValue& value) {
  const Entry& entry = state_.entries()[value.entry];
  if (std::holds_alternative<Value>(entry.content)) {
    CAIRN_TRY_ASSIGN(value.value, impl_.value_of(*entries_, *value.key, options_));
  } else {
    CAIRN_TRY_ASSIGN(value.payload, impl_.payload_of(*entries_, *value.key, options_));
  }
  return {};
}

Result<void> Loader::hand_over(const Archive& archive) {
  const CatalogTensor& tensor = *archive.tensor;
  const std::size_t chunk = archive.item.chunk;
  CAIRN_TRY_ASSIGN(std::string payload, impl_.chunk_payload(tensor.fqn, tensor.locations[chunk], options_));
  return options_.take_archive({archive.entry, tensor.chunk(chunk), archive.item.overlap, std::move(payload)});
}

void Loader::put_into_place(NewValue& value) {
  auto& content = state_.entries()[value.entry].content;
  if (auto* plain = std::get_if<Value>(&content)) *plain = std::move(value.value);
  if (auto* serialized = std::get_if<SerializedValue>(&content)) serialized->payload = std::move(value.payload);
  if (auto* serialized = std::get_if<SerializedTensor>(&content)) serialized->payload = std::move(value.payload);
}

}  // namespace cairn::checkpointer
