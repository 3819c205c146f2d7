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
#include <cairn/bucket_url.h>
#include <cairn/checkpoint.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "checkpoint/checkpoint_impl.h"
#include "checkpoint/wanted_entries.h"
#include "coordination/ranks.h"
#include "load/loader.h"
#include "load/rank_agreement.h"

namespace cairn {
namespace {

using checkpointer::Loader;
using checkpointer::WantedEntries;

constexpr unsigned kRestartsMax = 8;
// The pause before the first restart, doubled for each later restart.
constexpr std::chrono::milliseconds kRestartPause{5};

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
  const std::filesystem::path named =
      is_bucket_url(directory) ? directory : absolute_place(directory).lexically_normal();
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

Error checkpointer::naming_directory(const Checkpoint& checkpoint, Error error) {
  const std::string& directory = checkpoint.impl().directory;
  if (directory.empty()) return error;
  return std::move(error).while_doing("loading from '" + directory + "'");
}

Result<std::vector<std::string>> checkpointer::prepare_together(const Checkpoint& checkpoint, Loader& loader,
                                                                const LoadOptions& options,
                                                                coordination::Ranks& ranks) {
  Checkpoint::Impl& impl = checkpoint.impl();
  Result<std::string> mine = ranks.attempt([&]() -> Result<std::string> {
    CAIRN_TRY(loader.prepare());
    const std::string identity = options.own_checkpoint ? std::string() : impl.identity;
    return (options.allow_partial ? kPartial : kWhole) + loader.common_numbers().encode() + identity;
  });  // (1)
  if (!mine) mine = naming_directory(checkpoint, impl.replaced_or(mine.error()));
  Result<std::vector<std::string>> seen = ranks.all_gather(std::move(mine));  // (2)
  if (!seen) return with_reason(seen.error());
  if (Result<void> same = check_same(*seen); !same) {
    CAIRN_TRY(check_directories(ranks, impl.directory));
    return std::move(same).error();
  }
  return seen;
}

Result<LoadReport> checkpointer::load_once(const Checkpoint& checkpoint, StateDict& state, const LoadOptions& options,
                                           events::Operation& events) {
  coordination::Ranks ranks(options.collectives, 0);
  const auto explain = [&](Error error) { return naming_directory(checkpoint, std::move(error)); };
  Loader loader(checkpoint, state, options);
  events.work().set(0, 0);  // after a restart
  loader.count_into(events.work().count());
  const Result<std::vector<std::string>> seen = prepare_together(checkpoint, loader, options, ranks);
  if (!seen) return seen.error();
  events.step(EventKind::kPlanned);
  Result<LoadReport> report = ranks.attempt([&]() -> Result<LoadReport> {
    CAIRN_TRY(loader.mark_common(common_numbers_in(*seen), ranks.rank()));
    return loader.execute();
  });  // (3)
  // With allow_partial a restart could mix two checkpoints: keys that the second checkpoint lacks would keep bytes of
  // the first.
  const bool final = std::any_of(seen->begin(), seen->end(), [](const std::string& it) { return it[0] == kPartial; });
  Result<std::string> done{std::string()};
  if (!report) done = explain(final ? report.error() : checkpoint.impl().replaced_or(report.error()));
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

events::Operation checkpointer::begin_load(std::string_view directory, const LoadOptions& options) {
  if (options.silent) return {};
  const coordination::Ranks ranks(options.collectives, 0);
  return events::Operation::begin(EventOperation::kLoad, {directory, static_cast<std::uint32_t>(ranks.rank()),
                                                          static_cast<std::uint32_t>(ranks.size())});
}

void checkpointer::end_load(events::Operation& events, Result<LoadReport>& report) {
  if (!report) return events.fail(report.error());
  events.end(EventKind::kLoaded, report->bytes_read);
  events::add_trace_problem(report->warnings);
}

void tell_failed_load(const std::filesystem::path& directory, const Error& reason, const LoadOptions& options) {
  checkpointer::begin_load(directory.native(), options).fail(reason);
}

Result<LoadReport> Checkpoint::load(StateDict& state, const LoadOptions& options) const {
  events::Operation events = checkpointer::begin_load(impl_->directory, options);
  Result<LoadReport> report = checkpointer::load_once(*this, state, options, events);
  checkpointer::end_load(events, report);
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
  alone.renames.clear();
  events::Operation silent;
  CAIRN_TRY(checkpointer::load_once(*this, state, alone, silent));
  return {};
}

namespace {

Result<LoadReport> load_with_restarts(const std::filesystem::path& directory, StateDict& state,
                                      const LoadOptions& options, events::Operation& events) {
  for (unsigned restarts = 0;; ++restarts) {
    Result<Checkpoint> checkpoint = open_to_load(directory);
    Result<LoadReport> report = checkpoint ? checkpointer::load_once(*checkpoint, state, options, events)
                                           : Result<LoadReport>(abandon_load(checkpoint.error(), options));
    if (report) return report;
    // All ranks decide alike, because all ranks have equal errors.
    const bool is_replaced = report.error().code() == ErrorCode::kReplaced;
    const auto pause = is_replaced ? pause_before_restart(restarts) : std::nullopt;
    if (!pause) return report;
    std::this_thread::sleep_for(*pause);
  }
}

}  // namespace

Result<LoadReport> load(const std::filesystem::path& directory, StateDict& state, const LoadOptions& options) {
  events::Operation events = checkpointer::begin_load(directory.native(), options);
  Result<LoadReport> report = load_with_restarts(directory, state, options, events);
  checkpointer::end_load(events, report);
  return report;
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
