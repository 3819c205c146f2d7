// Loader: the part of a load that a rank does on its own (load.cc): it plans the reads, opens the files, and fills the
// targets.
//
// One thread at a time.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/planned_load.h>
#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_impl.h"
#include "checkpoint/stored_names.h"
#include "checkpoint/wanted_entries.h"
#include "core/work_count.h"
#include "data_file/brought_ranges.h"
#include "data_file/record_checks.h"
#include "data_file/tensor_reader.h"
#include "load/broadcast_reads.h"
#include "load/device_targets.h"
#include "load/filled_entries.h"
#include "load/shared_reads.h"
#include "os/parallel.h"
#include "plan/chunk_index.h"

namespace cairn::checkpointer {

class Loader {
 public:
  // The arguments outlive the object.
  Loader(const Checkpoint& checkpoint, StateDict& state, const LoadOptions& options)
      : checkpoint_(checkpoint), impl_(checkpoint.impl()), state_(state), options_(options) {}

  // Gets the bytes of the tensors' reads. Null: they are not counted.
  void count_into(std::shared_ptr<WorkCount> count) { count_ = std::move(count); }

  // Plans every read and opens every file; writes to no target. Callers of DCP match the texts of DCP's errors, so
  // missing keys and differing sizes are reported in DCP's words. After the first missing key prepare() only collects
  // more missing keys.
  Result<void> prepare();
  // The keys that the checkpoint lacks. After prepare(), with LoadOptions::allow_partial.
  const std::vector<std::string>& missing() const { return report_.missing; }

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
  CommonNumbers common_numbers();
  // `by_rank`: the common_numbers() of all ranks, of which this rank is number `rank`.
  Result<void> mark_common(const std::vector<CommonNumbers>& by_rank, std::size_t rank);

  Result<LoadReport> execute();
  // After execute(): this rank ended because another rank has failed.
  bool is_stopped() const { return is_stopped_; }
  // After execute(), as BroadcastOutcome: this rank has no step 4.
  bool has_left() const { return has_left_; }

  // In place of mark_common() and execute(): as PlannedLoad::run(). Ends early, with kCancelled, when `cancelled`
  // returns true.
  Result<LoadReport> fill(std::span<const std::size_t> order, const EntryFilled& filled,
                          const std::function<bool()>& cancelled);

 private:
  // A value that is stored after all tensors were read.
  struct NewValue {
    std::size_t entry;
    const std::string* key;  // in the checkpoint
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
  Result<void> execute_broadcasts();
  Result<void> execute_reads();
  data_file::ReadOptions options_of_reads();
  BroadcastOptions broadcast_options();
  LoadReport take_report();
  void sort_reads(std::span<const std::size_t> order);

  Result<void> check_dtype(const CatalogTensor& tensor, DType saved, DType target);
  const plan::ChunkIndex& index_of(const CatalogTensor& tensor);
  Result<void> plan_tensor(const CatalogTensor& tensor, const TensorEntry& target, std::size_t entry);
  Result<void> check_shared_record(const CatalogTensor& tensor, const plan::ReadItem& item,
                                   const data_file::DataFile& file, StoredTensor& stored);
  // Finds the reads with overlapping memory ranges. Interleaved views overlap by this count, although they share no
  // byte.
  void mark_overlaps();
  Result<void> read_value(NewValue& value);
  Result<void> hand_over(const Archive& archive);
  void put_into_place(NewValue& value);

  const Checkpoint& checkpoint_;
  Checkpoint::Impl& impl_;
  StateDict& state_;
  const LoadOptions& options_;
  LoadReport report_;
  StoredNames names_;                     // outlives the members below
  std::optional<WantedEntries> entries_;  // outlives the members below
  std::unordered_map<const CatalogTensor*, plan::ChunkIndex> indexes_;
  DeviceTargets devices_;
  std::vector<std::string> stale_;  // keys of tensors with another dtype in a file than in the metadata
  std::vector<data_file::TensorRead> reads_;
  std::vector<std::size_t> entries_of_reads_;        // by the place in reads_, until reads are broadcast
  bool targets_overlap_ = false;                     // of any two reads
  std::vector<ReadGroup> groups_;                    // of reads_
  std::uint64_t shared_cache_bytes_ = 0;             // in the page cache, by all sharers of the host
  std::optional<data_file::BroughtRanges> brought_;  // of the files of impl_; emptied after step 4
  std::optional<BroadcastReads> broadcast_;          // the reads that are not in reads_
  std::shared_ptr<WorkCount> count_;                 // shared with the ProgressWatches
  bool is_stopped_ = false;
  bool has_left_ = false;
  std::vector<NewValue> values_;
  std::vector<Archive> archives_;
  os::StopFlag never_stopped_;
  data_file::RecordChecks record_checks_{never_stopped_};
};

}  // namespace cairn::checkpointer
