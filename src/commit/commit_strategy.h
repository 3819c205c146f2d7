// CommitStrategy: what the commit of a checkpoint, of a model, or into an object store does differently.
// SaveTransaction takes the steps that all commits share, and asks the strategy (a) what is in place, (b) to make the
// new checkpoint visible, and (c) what the new checkpoint replaces.
//
// The numbers are those of save_transaction.cc. SaveTransaction calls the functions in this order, one thread at a
// time. The private folder and its lease exist from (1) to the end. A strategy without a rename (a conditional PUT, an
// exchange of whole directories) has its own make_visible(), and seals where its storage wants the new bytes.
#pragma once

#include <cairn/options.h>
#include <cairn/result.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "commit/commit_content.h"
#include "commit/lease.h"
#include "commit/private_folder.h"
#include "storage/storage.h"

namespace cairn::commit {

// Whether the lock of the directory excludes other saves. kNone: the file system has no locks.
enum class LockState : std::uint8_t { kHeld, kLost, kNone };

class CommitStrategy {
 public:
  using Warnings = std::vector<std::string>;
  struct FolderFile {  // of the private folder
    std::string_view name;
    std::string bytes;
  };
  struct ReplacedList {
    std::string text;
    bool must_last = true;  // false: a power cut that loses the list only leaves unneeded files behind
  };

  // `storage` must outlive the strategy.
  CommitStrategy(storage::Storage& storage, const SaveIdentity& identity)
      : storage_(storage), identity_(identity), folder_(folder_of_save(identity)) {}
  virtual ~CommitStrategy() = default;
  CommitStrategy(const CommitStrategy&) = delete;
  CommitStrategy& operator=(const CommitStrategy&) = delete;

  // The lease of the save, which outlives the strategy's use of it. Called before look().
  void hold(Lease& lease) { lease_ = &lease; }
  // (1) Looks at what is in place, and keeps the answer. Whether the names of a first save are free. An error refuses
  // the save.
  virtual Result<bool> look(Warnings& warnings) = 0;
  // (3) Whether the ranks publish their files. false: make_visible() gives the only file its final name.
  virtual bool publishes() const { return true; }
  // (4) What the commit needs in the private folder.
  virtual Result<std::vector<FolderFile>> sealed_files(const CommitContent& content) = 0;
  // (5) Under the lock: compares what is in place with (1), and returns the list of the files that the commit replaces,
  // for the private folder. kSuperseded: what is in place has changed, and not by an earlier save of this job.
  virtual Result<std::optional<ReplacedList>> look_again(const CommitContent& content) = 0;
  // (5) The commit point. Sets `may_be_visible` as soon as the new checkpoint is or may be visible, also if an error
  // follows: from then on no file is withdrawn. Without an error the checkpoint is visible.
  virtual Result<void> make_visible(Durability durability, bool& may_be_visible) = 0;
  // (5) After the sync.
  virtual Result<void> confirm() { return {}; }
  // (7) Without the lock: whether the replaced files may be removed. `is_given_up`: during step 5.
  virtual bool may_clean_unlocked(bool is_given_up) const = 0;
  // (7) Removes the files that the commit has replaced.
  virtual Result<void> clean(LockState lock, Durability durability, Warnings& warnings) = 0;
  // (7) Removes the folder of the committed save.
  virtual void remove_folder(Warnings& warnings) { remove_private_folder(storage_, folder_, warnings); }
  // (7), and when the save is withdrawn: before the folder goes, removes what names the save outside of the folder.
  virtual void leave_note() {}
  // When the save is withdrawn: after the folder.
  virtual void remove_directory() {}

  storage::Storage& storage() const { return storage_; }
  const SaveIdentity& identity() const { return identity_; }
  const std::string& folder() const { return folder_; }
  Result<void> sync(std::string_view folder, Durability durability) const {
    return durability == Durability::kDurable ? storage_.sync(folder) : Result<void>();
  }

 protected:
  std::string in_folder(std::string_view name) const { return folder_ + "/" + std::string(name); }
  // Whether `job` made the change, with an earlier save than this.
  bool is_earlier_save(const SaveId& job, std::uint64_t number) const {
    return !identity_.is_copy() && job == identity_.job_id && number < identity_.save_number;
  }
  // (5) Whether the published files are still there. A save that took this save for dead may have removed them.
  Result<void> check_published(const std::vector<std::string>& published) const {
    CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage_.list());
    std::unordered_set<std::string_view> names;
    for (const storage::ListedFile& file : files) names.insert(file.name);
    for (const std::string& name : published) {
      if (names.contains(name)) continue;
      return Error(ErrorCode::kUnavailable,
                   "a file of this save was removed before the commit: the save was silent for so long that another "
                   "save took it for dead, save again")
          .file(name);
    }
    return {};
  }
  // Moves a file of the folder over `name`. The other arguments are those of settle_move().
  Result<void> move_into_place(std::string_view from, const std::string& name, bool& may_be_visible,
                               std::string_view what, const std::function<Result<bool>()>& has_moved) {
    return settle_move(storage_.replace(in_folder(from), name), may_be_visible, what, has_moved);
  }
  // Returns whether a rename has succeeded, which answered `moved`. On a network file system the answer of a success
  // may be lost: `has_moved` finds out. If it can't, `what` says what is unknown, and `may_be_visible` is set.
  static Result<void> settle_move(Result<void> moved, bool& may_be_visible, std::string_view what,
                                  const std::function<Result<bool>()>& has_moved) {
    if (moved) return {};
    const bool was_visible = std::exchange(may_be_visible, true);  // unknown state, also if has_moved() throws
    if (const Result<bool> found = has_moved(); found) {
      may_be_visible = was_visible;
      return *found ? Result<void>() : moved;
    }
    return std::move(moved).error().while_doing("committing; it is unknown " + std::string(what));
  }

  storage::Storage& storage_;
  const SaveIdentity identity_;
  const std::string folder_;
  Lease* lease_ = nullptr;
};

}  // namespace cairn::commit
