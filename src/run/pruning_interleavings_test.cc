// prune() of two managers beside saves, pins, deaths, failing calls and power cuts, in every order of their calls into
// the storage. The code that runs is that of the library; the disks lose what was not synced.
#include <gtest/gtest.h>
#include <sanitizers.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_candidates.h"
#include "commit/checkpoint_removal.h"
#include "commit/pin.h"
#include "commit/testing/dead_lease.h"
#include "commit/testing/one_save.h"
#include "run/pruning.h"
#include "run/run_root.h"
#include "run/testing/interleavings.h"
#include "run/testing/scheduled_storage.h"
#include "storage/testing/model_storage.h"

namespace cairn::run {
namespace {

namespace fs = std::filesystem;
using storage::ModelStorage;
using storage::Storage;

// Of scenarios that take minutes with a sanitizer.
constexpr const char* kManyStates = "explored by the release build";
constexpr std::uint64_t kPowerCuts = 12;  // seeds for each state of the disks

commit::SaveIdentity save_of(std::uint64_t number, std::uint64_t job) {
  commit::SaveIdentity identity = commit::save_number(number, SaveId{job, job});
  identity.job_start = 1000 + job;
  return identity;
}

using Disks = std::map<fs::path, ModelStorage>;
using View = std::function<std::unique_ptr<Storage>(ModelStorage&)>;

// The directories of a run, as an actor sees them.
class ModelRoot final : public RunRoot {
 public:
  ModelRoot(Disks& disks, View view) : disks_(disks), view_(std::move(view)) {}
  Result<std::vector<fs::path>> directories() const override {
    std::vector<fs::path> paths;
    for (const auto& [path, disk] : disks_) paths.push_back(path);
    return paths;
  }
  Result<std::unique_ptr<Storage>> open(const fs::path& directory) const override {
    return view_(disks_.at(directory));
  }
  bool remove_if_empty(const fs::path&) override { return false; }

 private:
  Disks& disks_;
  View view_;
};

// A storage that skips syncs: a planted fault.
class Unsynced final : public storage::ViewStorage {
 public:
  explicit Unsynced(std::unique_ptr<Storage> storage) : ViewStorage(*storage), storage_(std::move(storage)) {}
  Result<void> sync(std::string_view) override { return {}; }

 private:
  std::unique_ptr<Storage> storage_;
};

// What an actor does after what.
struct Plan {
  std::optional<std::pair<fs::path, commit::SaveIdentity>> save = {};
  std::optional<fs::path> pin = {};
  bool prunes = false;
  bool may_fail = false;     // whether a call of prune() may fail
  bool looks_late = false;   // a planted fault: removes what is in place at the removal
  bool never_syncs = false;  // a planted fault, of prune()
};

struct Scenario {
  Scenario(const std::vector<std::pair<fs::path, commit::SaveIdentity>>& saves, std::vector<Plan> plans)
      : actors(std::move(plans)) {
    for (const auto& [path, identity] : saves) commit::commit_one(at_first[path], identity);
    for (const Plan& plan : actors) {
      if (plan.save) at_first[plan.save->first];
    }
  }

  Disks at_first;
  std::vector<Plan> actors;
};

// A violation ends the exploration: it is a text, and no failure, because a planted fault must lead to one.
class Run final : public World {
 public:
  Run(const Scenario& scenario, std::string& violation) : scenario_(scenario), violation_(violation) {
    for (const auto& [path, disk] : scenario.at_first) disks_[path].become(disk);
    acknowledged_ = durable_ = newest_good();
  }

  std::vector<std::function<void()>> actors(Turns& turns) override {
    std::vector<std::function<void()>> actors;
    for (std::size_t i = 0; i < scenario_.actors.size(); ++i) {
      actors.emplace_back([this, &turns, i] { act(turns, i); });
    }
    return actors;
  }

  std::string description() const override {
    std::string text;
    for (const auto& [path, disk] : disks_) text += path.string() + ": " + disk.description() + "\n";
    return text + "pinned " + pinned_.string();
  }

  void check_state(bool have_ended) override {
    const auto newest = newest_good();
    if (acknowledged_ && !newest) return violated("no good checkpoint is left");
    if (newest < acknowledged_) return violated("the newest good checkpoint is gone");
    acknowledged_ = newest;
    check_pin();
    if (have_ended) check_end();
  }

  void check_deadlock() override { violated("all wait for locks"); }

  void check_disks(std::uint64_t seed) override {
    const auto must_be = durable_;
    for (auto& [path, disk] : disks_) disk.lose_power(seed);
    const auto newest = newest_good();
    if (must_be && !newest) return violated("a power cut leaves no good checkpoint");
    if (newest < must_be) violated("a power cut takes an acknowledged checkpoint back");
    check_pin();
    ModelRoot root(disks_, [](ModelStorage& disk) { return ModelStorage::view_of(disk); });
    if (const auto report = prune(root, rule()); !report) violated(report.error().what());
    for (const auto& [path, disk] : disks_) {
      if (commit::holds(disk, ".cairn-removed")) violated("a removal was not finished after a power cut");
    }
    if (newest_good() != newest) violated("the first prune() after a power cut removes the newest checkpoint");
    check_no_damage();
  }

 private:
  using Order = std::pair<std::uint64_t, std::uint64_t>;  // start of the job, number of the save

  static PruneOptions rule() {
    PruneOptions options;
    options.rule.last = 1;
    return options;
  }

  void act(Turns& turns, std::size_t i) {
    const Plan& plan = scenario_.actors[i];
    if (plan.save && !save(turns, i, plan.save->first, plan.save->second)) return;
    if (plan.pin) {
      ScheduledStorage storage(turns, i, disks_.at(*plan.pin), false);
      if (commit::pin(storage, "")) pinned_ = *plan.pin;
    }
    if (!plan.prunes) return;
    ModelRoot root(disks_, [&](ModelStorage& disk) -> std::unique_ptr<Storage> {
      auto storage = std::make_unique<ScheduledStorage>(turns, i, disk, plan.may_fail);
      if (plan.never_syncs) return std::make_unique<Unsynced>(std::move(storage));
      return storage;
    });
    if (plan.looks_late) return prune_looking_late(root);
    (void)prune(root, rule());
  }

  bool save(Turns& turns, std::size_t i, const fs::path& path, const commit::SaveIdentity& identity) {
    ScheduledStorage storage(turns, i, disks_.at(path), false);
    auto claimed = commit::claim_checkpoint(storage, identity);
    if (!claimed) return false;
    commit::RankFiles files(storage, identity);
    const std::string name = commit::data_file_name((*claimed)->ticket(), 0, 0);
    const std::string data = commit::data_file_of(identity.save_id);
    (*claimed)->expect({name});
    const auto private_name = files.private_name(name);
    if (!private_name || !storage.create_whole(*private_name, data, Durability::kDurable)) return false;
    if (!files.publish({name}, Durability::kDurable)) return false;
    files.hand_over();
    manifest::CommitRecord record;
    record.files.push_back({name, data.size(), commit::checksum_of_trailer(data)});
    if (!(*claimed)->commit("pickle", record, Durability::kDurable)) return false;
    durable_ = std::max(durable_.value_or(Order()), Order(identity.job_start, identity.save_number));
    return true;
  }

  // prune() as somebody might write it: chooses by the order, and removes by the name.
  static void prune_looking_late(ModelRoot& root) {
    const checkpointer::OpenDirectory open = [&root](const fs::path& path) { return root.open(path); };
    const auto candidates =
        checkpointer::candidates_in(root.directories().value(), {}, checkpointer::Models::kIfAlone, open);
    for (std::size_t i = 1; i < candidates.size(); ++i) {
      const auto storage = root.open(candidates[i].directory).value();
      const auto in_place = commit::read_metadata_in_place(*storage);
      if (in_place) (void)commit::remove_checkpoint(*storage, *in_place, commit::Removal::kDo);
    }
  }

  std::vector<checkpointer::Candidate> candidates() {
    const checkpointer::OpenDirectory open = [this](const fs::path& path) -> Result<std::unique_ptr<Storage>> {
      return ModelStorage::view_of(disks_.at(path));
    };
    std::vector<fs::path> paths;
    for (const auto& [path, disk] : disks_) paths.push_back(path);
    auto found = checkpointer::candidates_in(paths, {}, checkpointer::Models::kIfAlone, open);
    for (checkpointer::Candidate& candidate : found) {
      if (!candidate.fault) candidate.fault = fault_of(candidate, checkpointer::Depth::kTrailers, open);
    }
    return found;
  }

  std::optional<Order> newest_good() {
    for (const checkpointer::Candidate& candidate : candidates()) {
      if (!candidate.fault) return Order(candidate.order->job_start, candidate.order->save_number);
    }
    return std::nullopt;
  }

  void check_no_damage() {
    for (const checkpointer::Candidate& candidate : candidates()) {
      if (candidate.fault) violated("a removed checkpoint is in place again, without its files");
    }
  }

  void check_pin() {
    if (!pinned_.empty() && !commit::holds(disks_.at(pinned_), ".metadata")) violated("a pinned checkpoint is gone");
  }

  void check_end() {
    std::size_t pins = 0;
    for (auto& [path, disk] : disks_) {
      // The saves have ended or died, in a process that lives on.
      for (const std::string& name : commit::names_in(disk)) {
        if (commit::save_id_of_folder(name)) commit::leave_dead_lease(disk, name);
      }
      pins += commit::holds(disk, std::string(commit::kPinName)) ? 1 : 0;
    }
    ModelRoot root(disks_, [](ModelStorage& disk) { return ModelStorage::view_of(disk); });
    const auto report = prune(root, rule());
    if (!report) return violated(report.error().what());
    if (!report->problems.empty()) return violated(report->problems.front().what());
    const std::size_t newest = newest_good() ? 1 : 0;  // 0: no save has committed
    if (candidates().size() != newest + pins) violated("prune() alone does not leave what the rule keeps");
  }

  void violated(const std::string& what) {
    if (!violation_.empty()) return;
    violation_ = what;
    for (const auto& [path, disk] : disks_) {
      violation_ += "\n" + path.string() + ":";
      for (const std::string& name : commit::names_in(disk)) violation_ += " " + name;
    }
  }

  const Scenario& scenario_;
  std::string& violation_;
  Disks disks_;
  std::optional<Order> acknowledged_;  // the newest good checkpoint that was ever in place
  std::optional<Order> durable_;       // the newest that a save has reported
  fs::path pinned_;
};

// Returns the first violation; empty if there is none.
std::string violation_in(const Scenario& scenario) {
  std::string violation;
  const Explored explored = explore([&] { return std::make_unique<Run>(scenario, violation); }, kPowerCuts,
                                    [&] { return !violation.empty(); });
  testing::Test::RecordProperty("states", static_cast<int>(explored.states));
  testing::Test::RecordProperty("executions", static_cast<int>(explored.executions));
  return violation;
}

const auto kFirst = std::pair(fs::path("step-1"), save_of(1, 1));
const auto kSecond = std::pair(fs::path("step-2"), save_of(2, 1));

const auto kThird = std::pair(fs::path("step-3"), save_of(3, 1));

TEST(PruningInterleavings, TwoManagersPrune) {
  if (kSanitized) GTEST_SKIP() << kManyStates;
  EXPECT_EQ(violation_in({{kFirst, kSecond, kThird}, {{.prunes = true}, {.prunes = true}}}), "");
}

TEST(PruningInterleavings, TwoManagersAndAFailure) {
  if (kSanitized) GTEST_SKIP() << kManyStates;
  EXPECT_EQ(violation_in({{kFirst, kSecond}, {{.prunes = true, .may_fail = true}, {.prunes = true}}}), "");
}

TEST(PruningInterleavings, PruneWithAFailure) {
  EXPECT_EQ(violation_in({{kFirst, kSecond, kThird}, {{.prunes = true, .may_fail = true}}}), "");
}

TEST(PruningInterleavings, PruneBesideASave) {
  if (kSanitized) GTEST_SKIP() << kManyStates;
  EXPECT_EQ(violation_in({{kFirst, kSecond}, {{.prunes = true}, {.save = kThird}}}), "");
}

TEST(PruningInterleavings, PruneBesideAnOverwrite) {
  if (kSanitized) GTEST_SKIP() << kManyStates;
  const auto overwrite = std::pair(kFirst.first, save_of(1, 2));
  EXPECT_EQ(violation_in({{kFirst, kSecond}, {{.prunes = true}, {.save = overwrite}}}), "");
}

TEST(PruningInterleavings, FailingPruneBesideASave) {
  if (kSanitized) GTEST_SKIP() << kManyStates;
  EXPECT_EQ(violation_in({{kFirst}, {{.prunes = true, .may_fail = true}, {.save = kSecond}}}), "");
}

TEST(PruningInterleavings, PruneBesideAPin) {
  EXPECT_EQ(violation_in({{kFirst, kSecond}, {{.prunes = true}, {.pin = kFirst.first}}}), "");
}

TEST(PruningInterleavings, TwoManagersAndAPin) {
  if (kSanitized) GTEST_SKIP() << kManyStates;
  EXPECT_EQ(violation_in({{kFirst, kSecond}, {{.pin = kFirst.first, .prunes = true}, {.prunes = true}}}), "");
}

TEST(PruningInterleavings, TwoManagersStartARun) {
  if (kSanitized) GTEST_SKIP() << kManyStates;
  EXPECT_EQ(violation_in({{}, {{.save = kFirst, .prunes = true}, {.save = kSecond, .prunes = true}}}), "");
}

TEST(PruningInterleavings, TwoManagersPruneAndSave) {
  if (kSanitized) GTEST_SKIP() << kManyStates;
  EXPECT_EQ(violation_in({{kFirst}, {{.save = kSecond, .prunes = true}, {.save = kThird, .prunes = true}}}), "");
}

// The checker finds faults that are planted.

TEST(PruningInterleavings, FindAPruneThatLooksLate) {
  if (kSanitized) GTEST_SKIP() << kManyStates;
  const auto overwrite = std::pair(kFirst.first, save_of(1, 2));
  const std::string found =
      violation_in({{kFirst, kSecond}, {{.prunes = true, .looks_late = true}, {.save = overwrite}}});
  EXPECT_TRUE(found.starts_with("the newest good checkpoint is gone")) << found;
}

TEST(PruningInterleavings, FindAPruneThatNeverSyncs) {
  const std::string found = violation_in({{kFirst}, {{.prunes = true, .never_syncs = true}, {.save = kSecond}}});
  EXPECT_TRUE(found.starts_with("a power cut")) << found;
}

}  // namespace
}  // namespace cairn::run
