#include <cairn/planned_load.h>

#include <atomic>
#include <utility>

#include "load/loader.h"
#include "load/rank_agreement.h"

namespace cairn {

struct PlannedLoad::Impl {
  Impl(const Checkpoint& its_checkpoint, StateDict& state, LoadOptions its_options)
      : checkpoint(its_checkpoint), options(std::move(its_options)), loader(its_checkpoint, state, options) {}

  const Checkpoint& checkpoint;
  LoadOptions options;
  checkpointer::Loader loader;
  std::atomic<bool> is_cancelled{false};
  events::Operation events;
};

PlannedLoad::PlannedLoad(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PlannedLoad::PlannedLoad(PlannedLoad&&) noexcept = default;
PlannedLoad& PlannedLoad::operator=(PlannedLoad&&) noexcept = default;
PlannedLoad::~PlannedLoad() = default;

const std::vector<std::string>& PlannedLoad::missing() const { return impl_->loader.missing(); }

void PlannedLoad::cancel() noexcept { impl_->is_cancelled = true; }

Result<LoadReport> PlannedLoad::run(const EntryFilled& filled, std::span<const std::size_t> order) {
  Result<LoadReport> report = impl_->loader.fill(order, filled, [this] { return impl_->is_cancelled.load(); });
  if (!report) {
    report = checkpointer::naming_directory(impl_->checkpoint,
                                            impl_->checkpoint.impl().replaced_or(std::move(report).error()));
  }
  checkpointer::end_load(impl_->events, report);
  return report;
}

Result<PlannedLoad> plan_load(const Checkpoint& checkpoint, StateDict& state, const LoadOptions& options) {
  auto impl = std::make_unique<PlannedLoad::Impl>(checkpoint, state, options);
  impl->options.broadcast_replicas = false;
  coordination::Ranks ranks(options.collectives, 0);
  impl->events = checkpointer::begin_load(checkpoint.impl().directory, options);
  impl->loader.count_into(impl->events.work().count());
  if (const auto all = checkpointer::prepare_together(checkpoint, impl->loader, impl->options, ranks); !all) {
    impl->events.fail(all.error());
    return all.error();
  }
  impl->events.step(EventKind::kPlanned);
  impl->options.collectives = nullptr;
  impl->options.interrupted = {};
  impl->options.take_archive = {};
  return PlannedLoad(std::move(impl));
}

}  // namespace cairn
