#include "commit/meeting/reported_files.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "commit/lease.h"
#include "commit/meeting/slowing_pace.h"
#include "storage/backoff.h"

namespace cairn::commit {
namespace {

using Clock = std::chrono::steady_clock;
using RecordedFile = manifest::CommitRecord::File;

constexpr std::chrono::seconds kListingMax{5};
constexpr std::chrono::milliseconds kListingMin{200};
// Heartbeats are a minute apart.
constexpr std::chrono::seconds kQuietMin{200};
// The leases of as many ranks are read, for their processes may die on this host. The death of another rank shows when
// its heartbeats end.
constexpr std::size_t kLeasesReadMax = 64;

class ReportedFiles {
 public:
  ReportedFiles(const storage::Storage& storage, const SaveMarks& marks, const SaveDeadlines& deadlines,
                const ExpectedFiles& expected)
      : storage_(storage), marks_(marks), deadlines_(deadlines), expected_(expected), ranks_(expected.names.size()) {}

  // Lists the folder once. Whether all ranks are complete; fails if a rank has failed or is lost.
  Result<bool> look() {
    CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage_.list(marks_.folder()));
    for (Rank& rank : ranks_) rank.has_lease = false;
    bool has_failed = false;
    for (const storage::ListedFile& file : files) {
      has_failed = has_failed || SaveMarks::rank_of_failure(file.name);
      if (const auto rank = rank_of_lease(file.name); rank && *rank < ranks_.size()) note_lease(*rank, file.touched_at);
      if (const auto rank = SaveMarks::rank_of_report(file.name); rank && *rank < ranks_.size()) {
        CAIRN_TRY(note_report(*rank, file.name));
      }
    }
    if (has_failed) return failed({});
    bool all = true;
    for (std::uint32_t number = 0; number < ranks_.size(); ++number) {
      if (number == expected_.mine || is_complete(number)) continue;
      all = false;
      // A second look in a row: a rank leaves its report before it removes its lease, and a listing takes a while.
      std::optional<Error> loss = loss_of(number);
      if (!loss) ranks_[number].lost_looks = 0;
      if (loss && ++ranks_[number].lost_looks > 1) return failed(std::move(loss));
    }
    return all;
  }

  std::vector<std::vector<RecordedFile>> take() {
    std::vector<std::vector<RecordedFile>> files;
    for (Rank& rank : ranks_) files.push_back(std::move(rank.files));
    return files;
  }

 private:
  struct Rank {
    std::vector<RecordedFile> files = {};
    bool is_reported = false;
    bool has_entered = false;
    bool has_lease = false;
    double touched_at = 0;  // the lease, by the store's clock: only changes have a meaning
    Clock::time_point last_sign = Clock::now();
    std::optional<LeaseHolder> holder = {};
    int lost_looks = 0;
  };

  // A rank without files agrees to the commit by its lease.
  bool is_complete(std::uint32_t number) const {
    return expected_.names[number].empty() ? ranks_[number].has_entered : ranks_[number].is_reported;
  }

  void note_lease(std::uint32_t number, double touched_at) {
    Rank& rank = ranks_[number];
    if (!rank.has_entered && leases_read_ < kLeasesReadMax) {
      ++leases_read_;
      if (auto holder = read_lease(storage_, marks_.path_of(rank_lease_name(number)))) rank.holder = std::move(*holder);
    }
    if (!rank.has_entered || touched_at != rank.touched_at) rank.last_sign = Clock::now();
    rank.has_entered = true;
    rank.has_lease = true;
    rank.touched_at = touched_at;
  }

  Result<void> note_report(std::uint32_t number, const std::string& name) {
    Rank& rank = ranks_[number];
    const std::vector<std::string>& names = expected_.names[number];
    if (rank.is_reported) return {};
    std::optional<std::vector<RecordedFile>> files = marks_.files_of_report(name);
    if (!files || files->size() != names.size()) {
      return Error(ErrorCode::kCorrupt, "the rank's report of its files is damaged")
          .file(marks_.path_of(name))
          .rank(number)
          .expected(std::to_string(names.size()) + " files");
    }
    for (std::size_t i = 0; i < names.size(); ++i) (*files)[i].name = names[i];
    rank.files = *std::move(files);
    rank.is_reported = true;
    return {};
  }

  std::optional<Error> loss_of(std::uint32_t number) const {
    const Rank& rank = ranks_[number];
    const auto lost = [number](const std::string& how) {
      return Error(ErrorCode::kUnavailable, "the rank is lost: " + how).rank(number);
    };
    const Clock::duration silence = Clock::now() - rank.last_sign;
    if (!rank.has_entered) {
      if (silence <= deadlines_.progress) return std::nullopt;
      return lost("its writer did not start within deadline_seconds");
    }
    if (!rank.has_lease) return lost("its lease is gone, without a failure mark and without all files");
    if (rank.holder && rank.holder->process.state() == os::ProcessIdentity::State::kDead) {
      return lost("the process of its writer has died");
    }
    if (silence <= std::max<Clock::duration>(deadlines_.progress, kQuietMin)) return std::nullopt;
    return lost("its writer sends no heartbeats any more");
  }

  Error failed(std::optional<Error> loss) const {
    std::vector<Error> failures;
    if (auto seen = marks_.look()) {
      for (auto& [rank, failure] : seen->failures) failures.push_back(std::move(failure));
    }
    if (failures.empty()) {
      failures.push_back(loss ? *std::move(loss) : Error(ErrorCode::kUnavailable, "a rank has failed"));
    }
    return Error::of_ranks(std::move(failures));
  }

  const storage::Storage& storage_;
  const SaveMarks& marks_;
  const SaveDeadlines& deadlines_;
  const ExpectedFiles& expected_;
  std::vector<Rank> ranks_;
  std::size_t leases_read_ = 0;
};

}  // namespace

Result<std::vector<std::vector<RecordedFile>>> wait_for_reports(const storage::Storage& storage, const SaveMarks& marks,
                                                                const SaveDeadlines& deadlines,
                                                                const ExpectedFiles& expected,
                                                                const std::function<bool()>& interrupted) {
  ReportedFiles reports(storage, marks, deadlines, expected);
  SlowingPace pace(kListingMax, kListingMin);
  for (storage::Backoff backoff;; backoff.pause()) {
    if (interrupted && interrupted()) {
      return Error(ErrorCode::kCancelled, "interrupted while waiting for the files of the ranks");
    }
    if (!pace.is_due()) continue;
    CAIRN_TRY_ASSIGN(const bool all, reports.look());
    if (all) return reports.take();
  }
}

bool has_living_rank(const storage::Storage& storage, const SaveMarks& marks, const std::set<std::uint32_t>& leases) {
  if (leases.size() > kLeasesReadMax) return true;
  return std::any_of(leases.begin(), leases.end(), [&](std::uint32_t rank) {
    const Result<std::optional<LeaseHolder>> holder = read_lease(storage, marks.path_of(rank_lease_name(rank)));
    return holder && *holder && (*holder)->process.state() != os::ProcessIdentity::State::kDead;
  });
}

}  // namespace cairn::commit
