// Work: a call into the engine, as the ProgressWatches list it (cairn/progress.h).
//
// Without a ProgressWatch at its begin, a Work holds nothing: each call costs a branch. Thread-safe, except for the
// constructors, the assignment and the destructor. A Work without end() has failed. In a forked child the Work of the
// parent does nothing.
#pragma once

#include <cairn/progress.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "core/work_count.h"

namespace cairn::events {

// Whether a ProgressWatch is open.
extern std::atomic<bool> is_watched;

struct OperationPlace {
  std::string_view directory;
  std::uint32_t rank = 0;
  std::uint32_t rank_count = 1;
};

class Work {
 public:
  using Unit = WorkInProgress::Unit;
  struct Form {
    Unit unit = Unit::kBytes;
    bool asynchronous = false;
  };

  Work() = default;
  static Work begin(WorkKind kind, const OperationPlace& place, Form form) {
    return is_watched.load(std::memory_order_relaxed) ? list(kind, place, form) : Work();
  }
  static Work begin(WorkKind kind, std::string_view directory, Unit unit = Unit::kBytes) {
    return begin(kind, {directory}, {unit, false});
  }

  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work() {
    if (listed_) drop();
  }

  // Null without a ProgressWatch. Shared with threads that may outlive the call.
  std::shared_ptr<WorkCount> count() const { return listed_ ? shared_count() : nullptr; }
  void set(std::uint64_t done, std::uint64_t total) const {
    if (listed_) store(done, total);
  }
  // A function that sets the count, and then calls `also`, which may be empty. Empty if there is nothing to do. Not to
  // be called after the end of the Work's life.
  using Setter = std::function<void(std::uint64_t done, std::uint64_t total)>;
  Setter setter(Setter also) const;
  // For a count that is kept elsewhere. `read(count)` may be called by any thread, also after the end.
  void measure(std::function<void(WorkCount&)> read) const {
    if (listed_) keep(std::move(read));
  }
  // The first call counts.
  void end(bool has_succeeded) const {
    if (listed_) note_end(has_succeeded);
  }
  bool is_listed() const { return listed_ != nullptr; }

 private:
  struct Listed;
  struct DeleteListed {
    void operator()(Listed* listed) const;
  };
  static Work list(WorkKind kind, const OperationPlace& place, Form form);
  std::shared_ptr<WorkCount> shared_count() const;
  void store(std::uint64_t done, std::uint64_t total) const;
  void keep(std::function<void(WorkCount&)> read) const;
  void note_end(bool has_succeeded) const;
  void drop() noexcept;

  std::unique_ptr<Listed, DeleteListed> listed_;
};

}  // namespace cairn::events
