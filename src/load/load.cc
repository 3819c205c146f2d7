// A load, by one process or by several ranks: all ranks load from one checkpoint, or all ranks fail.
//
// 1. Every rank finds its keys in the catalog (wanted_entries.h), checks what the metadata and the trailers of the data
//    files allow to check, opens its files, and reads its values. No target has changed.
// 2. The ranks exchange failures, the identities of their checkpoints, and the numbers that find the reads that several
//    ranks of a host share (shared_reads.h), or that several ranks broadcast (broadcast_reads.h). A concurrent save
//    with overwrite may replace the checkpoint, and remove the old files, between the opens of two ranks; then all
//    ranks restart (kReplaced).
//                                                                                                       [all-gather]
// 3. Every rank fills its tensors, and then stores its values. With broadcasts, a rank ends without an error of its own
//    when another rank has failed; that rank's error comes in step 4.                                     [broadcasts]
// 4. The ranks exchange the outcomes of step 3.                                                         [all-gather]
#include <cairn/checkpoint.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "checkpoint/checkpoint_impl.h"
#include "checkpoint/chunk_read.h"
#include "checkpoint/missing_keys.h"
#include "checkpoint/recorded_dtypes.h"
#include "checkpoint/wanted_entries.h"
#include "coordination/ranks.h"
#include "core/byte_units.h"
#include "core/conversion.h"
#include "data_file/brought_ranges.h"
#include "data_file/record_checks.h"
#include "data_file/tensor_reader.h"
#include "load/broadcast_reads.h"
#include "load/device_targets.h"
#include "load/shared_reads.h"
#include "os/memory_limits.h"
#include "os/process_identity.h"
#include "plan/chunk_index.h"

namespace cairn {
namespace {

using checkpointer::BroadcastReads;
using checkpointer::ReadFilter;
using checkpointer::SharedReads;
using checkpointer::WantedEntries;

// The most bytes that the sharers of a host together keep in the page cache. With less room than the second number, a
// rank shares nothing: the page cache could lose bytes before all sharers have read the bytes.
constexpr std::uint64_t kSharedCacheBytesMax = 2048 * kMiB;
constexpr std::uint64_t kSharedCacheBytesMin = 128 * kMiB;
// The part of the free memory that these bytes may take.
constexpr std::uint64_t kSharedCachePart = 4;

constexpr unsigned kRestartsMax = 8;
// The pause before the first restart, doubled for each later restart.
constexpr std::chrono::milliseconds kRestartPause{5};

class Loader {
 public:
  Loader(Checkpoint::Impl& impl, StateDict& state, const LoadOptions& options)
      : impl_(impl), state_(state), options_(options) {}

  // Plans every read and opens every file; writes to no target. Callers of DCP match the texts of DCP's errors, so
  // missing keys and differing sizes are reported in DCP's words. After the first missing key prepare() only collects
  // more missing keys.
  Result<void> prepare() {
    CAIRN_TRY(devices_.mark(state_.entries()));
    CAIRN_TRY_ASSIGN(entries_, WantedEntries::of(impl_, state_.entries(), options_.allow_partial));
    for (std::size_t i = 0; i < state_.entries().size(); ++i) {
      Entry& entry = state_.entries()[i];
      const CatalogTensor* tensor = entries_->tensor(entry.fqn);
      const CatalogValue* value = entries_->value(entry.fqn);
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
        values_.push_back({i, {}, {}});
      }
    }
    if (!options_.allow_partial && !report_.missing.empty()) {
      const Catalog* whole = nullptr;
      CAIRN_TRY_ASSIGN(whole, impl_.whole_catalog());
      return checkpointer::missing_keys(*whole, report_.missing);
    }
    for (NewValue& value : values_) CAIRN_TRY(read_value(value));
    for (const Archive& archive : archives_) CAIRN_TRY(hand_over(archive));
    mark_overlaps();
    return {};
  }

  // What the other ranks need to find the reads that they have in common with this rank.
  struct CommonNumbers {
    SharedReads::Numbers of_host{};
    BroadcastReads::Numbers of_job{};
    ReadFilter filter{1, 0};

    static std::size_t encoded_bytes(std::size_t rank_count) {
      return 2 * SharedReads::kEncodedBytes + ReadFilter::encoded_bytes(rank_count);
    }
    std::string encode() const { return SharedReads::encode(of_host) + SharedReads::encode(of_job) + filter.encode(); }
    // Of a rank without reads if `bytes` is too short.
    static CommonNumbers decode(std::string_view bytes, std::size_t rank_count) {
      CommonNumbers numbers;
      numbers.filter = ReadFilter(rank_count, 0);
      if (bytes.size() < encoded_bytes(rank_count)) return numbers;
      numbers.of_host = SharedReads::decode(bytes);
      numbers.of_job = SharedReads::decode(bytes.substr(SharedReads::kEncodedBytes));
      numbers.filter = ReadFilter::decode(bytes.substr(2 * SharedReads::kEncodedBytes), rank_count);
      return numbers;
    }
  };
  CommonNumbers common_numbers() {
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
  // `by_rank`: the common_numbers() of all ranks, of which this rank is number `rank`.
  Result<void> mark_common(const std::vector<CommonNumbers>& by_rank, std::size_t rank) {
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

  Result<LoadReport> execute() {
    if (broadcast_) CAIRN_TRY(execute_broadcasts());
    if (is_stopped_) return std::move(report_);
    CAIRN_TRY(execute_reads());
    CAIRN_TRY(devices_.finish(options_.interrupted));
    for (NewValue& value : values_) put_into_place(value);
    if (const auto damage = impl_.damage()) report_.warnings.push_back(*damage);
    if (!stale_.empty()) report_.warnings.push_back(checkpointer::stale_dtypes_warning(stale_));
    if (const auto refusal = devices_.untold_refusal()) report_.warnings.push_back(*refusal);
    return std::move(report_);
  }
  // After execute(): this rank ended because another rank has failed.
  bool is_stopped() const { return is_stopped_; }
  // After execute(), as BroadcastOutcome: this rank has no step 4.
  bool has_left() const { return has_left_; }

 private:
  // A value that is stored after all tensors were read.
  struct NewValue {
    std::size_t entry;
    Value value;
    std::string payload;
  };

  // A chunk that only the caller can read.
  struct Archive {
    std::size_t entry;
    const CatalogTensor* tensor;
    plan::ReadItem item;
  };

  // The bytes of other ranks, through this rank's buffers. The report of a load that another rank stops is not used.
  Result<void> execute_broadcasts() {
    const checkpointer::BroadcastOutcome outcome = broadcast_->run();
    has_left_ = outcome.has_left();
    if (outcome.failure) return while_filling(*outcome.failure);
    is_stopped_ = outcome.is_stopped;
    report_.bytes_needed += broadcast_->bytes_needed();
    report_.bytes_read += outcome.bytes_read;
    return {};
  }

  Result<void> execute_reads() {
    data_file::ReadOptions read_options;
    read_options.verify = options_.verify;
    // One thread fills targets that share memory: the shared bytes then come whole from the last target.
    read_options.thread_count = targets_overlap_ ? 1 : options_.thread_count;
    read_options.direct_io = options_.direct_io;
    read_options.interrupted = options_.interrupted;
    read_options.devices = &devices_;
    read_options.brought = brought_ ? &*brought_ : nullptr;
    const Result<data_file::ReadCounts> counts = data_file::read_tensors(reads_, read_options);
    if (!counts) return while_filling(counts.error());
    report_.bytes_needed += counts->bytes_needed;
    report_.bytes_read += counts->bytes_read;
    return {};
  }

  checkpointer::BroadcastOptions broadcast_options() {
    checkpointer::BroadcastOptions broadcast;
    broadcast.verify = options_.verify;
    broadcast.devices = &devices_;
    broadcast.direct_io = options_.direct_io;
    broadcast.interrupted = options_.interrupted;
    return broadcast;
  }

  static Error while_filling(Error error) {
    if (error.code() != ErrorCode::kCorrupt) return error;
    return std::move(error).while_doing("filling the targets, which are partly written");
  }

  // A shape in torch's notation.
  static std::string size_text(const Extents& shape) { return "torch.Size(" + to_string(shape) + ")"; }

  static Error kind_differs(const Entry& entry, std::string_view expected, std::string_view actual) {
    return Error(ErrorCode::kInvalidArgument, "the kind of the entry in the checkpoint differs from the target's")
        .key(entry.fqn)
        .expected(expected)
        .actual(actual);
  }

  Result<void> check_dtype(const CatalogTensor& tensor, DType saved, DType target) {
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

  const plan::ChunkIndex& index_of(const CatalogTensor& tensor) {
    return indexes_.try_emplace(&tensor, tensor).first->second;
  }

  Result<void> plan_tensor(const CatalogTensor& tensor, const TensorEntry& target, std::size_t entry) {
    if (!(tensor.shape == target.global_shape)) {
      return Error(ErrorCode::kInvalidArgument, "Size mismatch between saved " + size_text(tensor.shape) +
                                                    " and current: " + size_text(target.global_shape))
          .key(tensor.fqn)
          .expected(to_string(target.global_shape))
          .actual(to_string(tensor.shape));
    }
    DType checked = tensor.dtype;
    bool is_checked = !checkpointer::may_have_stale_dtypes(impl_);
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
      reads_.push_back(checkpointer::chunk_read(tensor, item, {target.local, target.box}, *file, *std::move(stored)));
      groups_.push_back(checkpointer::group_of(reads_.back(), target.box.sizes() == tensor.shape));
    }
    if (!is_checked) CAIRN_TRY(check_dtype(tensor, checked, target.local.dtype));
    return {};
  }

  // In a torch.save file many tensors may be views of one record. Verify::kFull checks such a record once, and not
  // again for each view.
  Result<void> check_shared_record(const CatalogTensor& tensor, const plan::ReadItem& item,
                                   const data_file::DataFile& file, StoredTensor& stored) {
    const bool is_shared = impl_.catalog.format == CheckpointFormat::kTorchSave;
    const auto bytes = static_cast<std::uint64_t>(item.overlap.element_count()) * item_bytes(stored.dtype);
    if (!is_shared || options_.verify != Verify::kFull || bytes == stored.record_bytes) return {};
    CAIRN_TRY(record_checks_.check(file, tensor.fqn, stored));
    stored.record_crc.reset();
    return {};
  }

  // Finds the reads with overlapping memory ranges. Interleaved views overlap by this count, although they share no
  // byte.
  void mark_overlaps() {
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

  Result<void> read_value(NewValue& value) {
    const Entry& entry = state_.entries()[value.entry];
    if (std::holds_alternative<Value>(entry.content)) {
      CAIRN_TRY_ASSIGN(value.value, impl_.value_of(*entries_, entry.fqn, options_));
    } else {
      CAIRN_TRY_ASSIGN(value.payload, impl_.payload_of(*entries_, entry.fqn, options_));
    }
    return {};
  }

  Result<void> hand_over(const Archive& archive) {
    const CatalogTensor& tensor = *archive.tensor;
    const std::size_t chunk = archive.item.chunk;
    CAIRN_TRY_ASSIGN(std::string payload, impl_.chunk_payload(tensor.fqn, tensor.locations[chunk], options_));
    return options_.take_archive({archive.entry, tensor.chunk(chunk), archive.item.overlap, std::move(payload)});
  }

  void put_into_place(NewValue& value) {
    auto& content = state_.entries()[value.entry].content;
    if (auto* plain = std::get_if<Value>(&content)) *plain = std::move(value.value);
    if (auto* serialized = std::get_if<SerializedValue>(&content)) serialized->payload = std::move(value.payload);
    if (auto* serialized = std::get_if<SerializedTensor>(&content)) serialized->payload = std::move(value.payload);
  }

  Checkpoint::Impl& impl_;
  StateDict& state_;
  const LoadOptions& options_;
  LoadReport report_;
  std::optional<WantedEntries> entries_;  // outlives the members below
  std::unordered_map<const CatalogTensor*, plan::ChunkIndex> indexes_;
  checkpointer::DeviceTargets devices_;
  std::vector<std::string> stale_;  // keys of tensors with another dtype in a file than in the metadata
  std::vector<data_file::TensorRead> reads_;
  bool targets_overlap_ = false;                     // of any two reads
  std::vector<checkpointer::ReadGroup> groups_;      // of reads_
  std::uint64_t shared_cache_bytes_ = 0;             // in the page cache, by all sharers of the host
  std::optional<data_file::BroughtRanges> brought_;  // of the files of impl_; emptied after step 4
  std::optional<BroadcastReads> broadcast_;          // the reads that are not in reads_
  bool is_stopped_ = false;
  bool has_left_ = false;
  std::vector<NewValue> values_;
  std::vector<Archive> archives_;
  os::StopFlag never_stopped_;
  data_file::RecordChecks record_checks_{never_stopped_};
};

// A rank's message of step 2: one of these bytes, the CommonNumbers, and the identity of the checkpoint.
constexpr char kPartial = 'p';  // allow_partial: entries without a key in the checkpoint stay unchanged
constexpr char kWhole = 'w';

// kReplaced unless all ranks have opened one checkpoint.
Result<void> check_same(const std::vector<std::string>& seen) {
  const std::size_t begin = 1 + Loader::CommonNumbers::encoded_bytes(seen.size());
  const auto identity = [&](std::size_t rank) { return seen[rank].substr(std::min(begin, seen[rank].size())); };
  for (std::size_t rank = 0; rank < seen.size(); ++rank) {
    if (identity(rank) == identity(0)) continue;
    return Error(ErrorCode::kReplaced, "ranks opened different checkpoints: a save replaced the checkpoint meanwhile")
        .rank(static_cast<std::int64_t>(rank))
        .expected(identity(0))
        .actual(identity(rank));
  }
  return {};
}

// For ranks that have opened different checkpoints: kInvalidArgument if the ranks name different directories. Then no
// save has replaced a checkpoint, and a restart would end like this call.
Result<void> check_directories(coordination::Ranks& ranks, const std::filesystem::path& directory) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(directory, error);
  const std::filesystem::path named = (error ? directory : absolute).lexically_normal();
  CAIRN_TRY_ASSIGN(const std::vector<std::string> all, ranks.all_gather(named.string()));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return Error(ErrorCode::kInvalidArgument, "the ranks name different directories, with different checkpoints")
        .rank(static_cast<std::int64_t>(rank))
        .expected("'" + all[0] + "', as rank 0")
        .actual("'" + all[rank] + "'");
  }
  return {};
}

std::vector<Loader::CommonNumbers> common_numbers_in(const std::vector<std::string>& seen) {
  std::vector<Loader::CommonNumbers> numbers;
  numbers.reserve(seen.size());
  for (const std::string_view message : seen) {
    numbers.push_back(
        Loader::CommonNumbers::decode(message.substr(std::min<std::size_t>(1, message.size())), seen.size()));
  }
  return numbers;
}

// Ranks may fail for different reasons. A replaced checkpoint explains all of them except a cancellation: a cancelled
// rank takes no part in a restart. Therefore kCancelled comes first, then kReplaced.
Error with_reason(Error error) {
  std::vector<Error> replaced;
  for (const Error& cause : error.causes()) {
    if (cause.code() == ErrorCode::kCancelled) return Error::of_ranks({cause});
    if (cause.code() == ErrorCode::kReplaced) replaced.push_back(cause);
  }
  return replaced.empty() ? error : Error::of_ranks(std::move(replaced));
}

}  // namespace

Result<LoadReport> Checkpoint::load(StateDict& state, const LoadOptions& options) const {
  coordination::Ranks ranks(options.collectives, 0);
  const auto explain = [this](Error error) {
    if (impl_->directory.empty()) return error;
    return std::move(error).while_doing("loading from '" + impl_->directory + "'");
  };
  Loader loader(*impl_, state, options);
  Result<std::string> mine = ranks.attempt([&]() -> Result<std::string> {
    CAIRN_TRY(loader.prepare());
    const std::string identity = options.own_checkpoint ? std::string() : impl_->identity;
    return (options.allow_partial ? kPartial : kWhole) + loader.common_numbers().encode() + identity;
  });  // (1)
  if (!mine) mine = explain(impl_->replaced_or(mine.error()));
  const Result<std::vector<std::string>> seen = ranks.all_gather(std::move(mine));  // (2)
  if (!seen) return with_reason(seen.error());
  if (Result<void> same = check_same(*seen); !same) {
    CAIRN_TRY(check_directories(ranks, impl_->directory));
    return std::move(same).error();
  }
  Result<LoadReport> report = ranks.attempt([&]() -> Result<LoadReport> {
    CAIRN_TRY(loader.mark_common(common_numbers_in(*seen), ranks.rank()));
    return loader.execute();
  });  // (3)
  // With allow_partial a restart could mix two checkpoints: keys that the second checkpoint lacks would keep bytes of
  // the first.
  const bool final = std::any_of(seen->begin(), seen->end(), [](const std::string& it) { return it[0] == kPartial; });
  Result<std::string> done{std::string()};
  if (!report) done = explain(final ? report.error() : impl_->replaced_or(report.error()));
  if (loader.has_left()) return std::move(done).error();
  const Result<std::vector<std::string>> all = ranks.all_gather(std::move(done));  // (4)
  // A transport that fails has no causes by rank: this rank's own failure, if any, came before. No restart: the other
  // ranks know nothing of it.
  const bool lost_transport = options.collectives != nullptr && !all && all.error().causes().empty();
  if (lost_transport && !report && report.error().code() != ErrorCode::kReplaced) return explain(report.error());
  if (!all) return with_reason(all.error());
  if (loader.is_stopped()) return Error(ErrorCode::kInternal, "a rank stopped a broadcast and gave no reason");
  return report;
}

Result<void> Checkpoint::read(std::string_view fqn, const Box& box, const TensorView& target,
                              const LoadOptions& options) const {
  CAIRN_TRY_ASSIGN(const WantedEntries entries, WantedEntries::of_key(*impl_, fqn));
  const CatalogTensor* tensor = entries.tensor(fqn);
  if (tensor == nullptr) return Error(ErrorCode::kMissingKey, "no such tensor in the checkpoint").key(fqn);
  StateDict state;
  if (!(target.sizes == box.sizes())) {
    return Error(ErrorCode::kInvalidArgument, "the sizes of the target differ from the sizes of the box")
        .key(fqn)
        .expected(to_string(box.sizes()))
        .actual(to_string(target.sizes));
  }
  CAIRN_TRY(state.add_chunk(std::string(fqn), target, tensor->shape, box.offsets()));
  LoadOptions alone = options;
  alone.collectives = nullptr;
  CAIRN_TRY(load(state, alone));
  return {};
}

Result<LoadReport> load(const std::filesystem::path& directory, StateDict& state, const LoadOptions& options) {
  for (unsigned restarts = 0;; ++restarts) {
    Result<Checkpoint> checkpoint = open_to_load(directory);
    Result<LoadReport> report =
        checkpoint ? checkpoint->load(state, options) : Result<LoadReport>(abandon_load(checkpoint.error(), options));
    if (report) return report;
    // All ranks decide alike, because all ranks have equal errors.
    const bool is_replaced = report.error().code() == ErrorCode::kReplaced;
    const auto pause = is_replaced ? pause_before_restart(restarts) : std::nullopt;
    if (!pause) return report;
    std::this_thread::sleep_for(*pause);
  }
}

std::optional<std::chrono::milliseconds> pause_before_restart(unsigned restarts) {
  if (restarts >= kRestartsMax) return std::nullopt;
  return kRestartPause * (1U << restarts);
}

Error abandon_load(const Error& reason, const LoadOptions& options) {
  if (options.collectives == nullptr) return reason;
  const auto seen = coordination::Ranks(options.collectives, 0).all_gather(reason);
  return seen ? reason : with_reason(seen.error());
}

Result<void> agree(const Result<void>& mine, const LoadOptions& options) {
  Result<std::string> outcome = mine ? Result<std::string>(std::string()) : mine.error();
  CAIRN_TRY(coordination::Ranks(options.collectives, 0).all_gather(std::move(outcome)));
  return {};
}

}  // namespace cairn
