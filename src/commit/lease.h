// Lease: a file that names the process of a save. Other processes read the lease to tell whether leftover files still
// have a living owner.
//
// Every save has a private folder `.cairn-<save id>/` in the checkpoint's directory. Only the saving user may enter the
// folder, and every process of the save holds the folder by a descriptor (storage.h). The file `lease` in the folder
// names the job and the process; the modification time is a heartbeat. If ranks write through their own writers
// (rank_save.h), each rank except the coordinator has a `lease-<rank>` in the folder.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "commit/progress_tracker.h"
#include "commit/storage_clock.h"
#include "os/process_identity.h"
#include "storage/conditional_write.h"
#include "storage/storage.h"

namespace cairn::commit {

class TaggedLease;

// What a save commits: a DCP checkpoint (metadata_commit.h), a safetensors model (model_commit.h), or a directory that
// gets its name when all of its files are in place (directory_commit.h).
enum class SaveForm : std::uint8_t { kCheckpoint, kModel, kDirectory };

// The identity of a save, and the save's number within the job.
struct SaveIdentity {
  SaveId save_id;
  SaveId job_id;
  std::uint64_t save_number = 0;
  std::uint64_t job_start = 0;            // as in the commit record; not part of a lease
  SaveForm form = SaveForm::kCheckpoint;  // not part of a lease: the folder's name tells the form

  // A copy by a conversion is a save of no job.
  bool is_copy() const { return job_id == SaveId(); }
};

inline constexpr std::string_view kFolderPrefix = ".cairn-";
std::string folder_of(const SaveId& save_id, SaveForm form = SaveForm::kCheckpoint);
inline std::string folder_of_save(const SaveIdentity& identity) { return folder_of(identity.save_id, identity.form); }
// The inverse of folder_of(); nullopt if `name` is not the name of a private folder of a save of this form.
std::optional<SaveId> save_id_of_folder(std::string_view name, SaveForm form = SaveForm::kCheckpoint);
// The inverse of to_hex().
std::optional<SaveId> save_id_of_hex(std::string_view digits);

// The names of leases in a private folder: the coordinator's lease, which is also the lease of the whole save, and the
// lease of a rank.
inline constexpr std::string_view kLeaseName = "lease";
std::string rank_lease_name(std::uint32_t rank);
// The rank whose lease has this name; nullopt if `name` is not the name of a rank's lease.
std::optional<std::uint32_t> rank_of_lease(std::string_view name);

// The longest time between two heartbeats: a lease whose last heartbeat is older has run out.
inline constexpr double kSilenceSeconds = 300;

// The commit of a save into a storage without a rename, as the save's lease announces it: the metadata file, and the
// condition of its write.
struct AnnouncedCommit {
  std::string metadata_name;
  storage::WriteCondition condition;
};

// Keeps a lease alive until destroyed: a thread of the object touches the file every few seconds, and writes the save's
// progress into the file. The modification time shows that the process lives; the text shows whether the save
// progresses.
class Lease {
 public:
  // Called by the heartbeat's thread. Everything that the function uses must outlive the lease. Empty: the lease holds
  // no progress.
  using Progress = std::function<ProgressReport()>;

  // Makes the save's folder with a lease in the folder. Fails with EEXIST if the folder exists.
  static Result<Lease> take_with_folder(storage::Storage& storage, const SaveIdentity& identity,
                                        Progress progress = {});
  // Takes a rank's lease, in the folder made by the coordinator: kNotFound if the folder is missing, kUnsafe if the
  // folder belongs to another user.
  static Result<Lease> take_as_rank(storage::Storage& storage, const SaveIdentity& identity, std::uint32_t rank,
                                    Progress progress = {});
  // Takes a lease outside of a save's folder: of the process that manages a run (run/managing_lease.h).
  static Result<Lease> take_file(storage::Storage& storage, const SaveIdentity& identity, const std::string& name);
  // Writes into the file of take_file() that its process has failed: until another process takes the lease, the file
  // stands for a dead process. Without a heartbeat: the lease was given up.
  static Result<void> mark_failed(storage::Storage& storage, const std::string& name);

  Lease(Lease&&) noexcept = default;
  Lease& operator=(Lease&&) noexcept = default;

  // In a storage without a rename: notes in the lease the next write of a metadata file. kUnavailable if the lease was
  // closed (bucket/closed_lease.h): the save must not commit any more.
  Result<void> announce(const AnnouncedCommit& commit);

 private:
  static Result<Lease> take(storage::Storage& storage, const std::string& name, std::string identity,
                            Progress progress);
  static Result<Lease> take_tagged(std::shared_ptr<TaggedLease> tagged);
  explicit Lease(std::jthread heartbeat, std::shared_ptr<TaggedLease> tagged = nullptr)
      : tagged_(std::move(tagged)), heartbeat_(std::move(heartbeat)) {}
  std::shared_ptr<TaggedLease> tagged_;  // in a storage without a rename; the heartbeat is a second owner
  std::jthread heartbeat_;
};

// The holder of a lease, according to the file.
struct LeaseHolder {
  SaveIdentity identity;
  os::ProcessIdentity process;
  std::uint64_t since = 0;                      // when a process took the lease with take_file(), in seconds since 1970
  bool has_failed = false;                      // mark_failed()
  std::optional<ProgressReport> progress = {};  // as of the last heartbeat; nullopt if the lease holds no progress
  // In a storage without a rename (bucket/tagged_lease.h):
  std::optional<AnnouncedCommit> commit = {};  // a write that may have happened, or may still happen
  bool is_decided = false;                     // the folder holds the decision on the save
  bool is_closed = false;                      // the save writes no metadata file any more
};
// Nullopt if the text is not a lease, or not complete yet.
std::optional<LeaseHolder> decode_lease(const std::string& text);
// The largest text that is read.
inline constexpr std::uint64_t kLeaseBytesMax = 64 * 1024;
// `name` is relative to the checkpoint's directory. Nullopt if the text is not a lease, or not complete yet.
Result<std::optional<LeaseHolder>> read_lease(const storage::Storage& storage, std::string_view name);

// The lines of a lease in a storage without a rename; each text ends with a line feed.
std::string encode_announced(const AnnouncedCommit& commit);
inline constexpr std::string_view kDecidedLine = "decided yes\n";
inline constexpr std::string_view kClosedLine = "closed yes\n";

// Whether no process works in this folder any more. For each lease in the folder, either the process is dead, or this
// host cannot see the process and the last heartbeat is more than kSilenceSeconds older than the time on `clock`.
Result<bool> lease_has_run_out(const storage::Storage& storage, std::string_view folder, const StorageClock& clock);

}  // namespace cairn::commit
