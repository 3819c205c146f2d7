// Lease: says in the storage who is saving, so that others know whether leftovers still have an owner.
//
// Every save has a private folder `.cairn-<save id>/` inside the checkpoint's directory, which only the user who saves
// may enter, and which every process of the save holds by its descriptor (storage.h); the file `lease` in it names the
// job and the process, and its time of change is a heartbeat. Where ranks write on their own (rank_save.h), each of
// them but the coordinator has a `lease-<rank>` beside it.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "commit/progress_tracker.h"
#include "commit/storage_clock.h"
#include "os/process_identity.h"
#include "storage/storage.h"

namespace cairn::commit {

// Which save this is among those of its job.
struct SaveIdentity {
  SaveId save_id;
  SaveId job_id;
  std::uint64_t save_number = 0;
  std::uint64_t job_start = 0;  // as in the commit record; a lease does not carry it
};

inline constexpr std::string_view kFolderPrefix = ".cairn-";
std::string folder_of(const SaveId& save_id);
// The other way; nullopt if the name is not that of a private folder.
std::optional<SaveId> save_id_of_folder(std::string_view name);

// The names of leases in a private folder: the coordinator's, which is the whole save's, and a rank's.
inline constexpr std::string_view kLeaseName = "lease";
std::string rank_lease_name(std::uint32_t rank);
// The rank whose lease has this name; nullopt if it is no rank's.
std::optional<std::uint32_t> rank_of_lease(std::string_view name);

// How long a lease lasts: a heartbeat that is older has stopped.
inline constexpr double kSilenceSeconds = 300;

// Keeps a lease alive until destroyed: a thread of its own touches the file every few seconds and writes into it how
// far the save is. The time of change says that the process lives; the text says whether the save gets on.
class Lease {
 public:
  // Called by the heartbeat's thread; what it uses outlives the lease. Empty: the lease says nothing of progress.
  using Progress = std::function<ProgressReport()>;

  // Makes the save's folder with a lease in it. An error with EEXIST if the folder is there.
  static Result<Lease> take_with_folder(storage::Storage& storage, const SaveIdentity& identity,
                                        Progress progress = {});
  // A rank's own, in the folder that the coordinator made: kNotFound if it is not there, kUnsafe if the folder is
  // another user's.
  static Result<Lease> take_as_rank(storage::Storage& storage, const SaveIdentity& identity, std::uint32_t rank,
                                    Progress progress = {});

  Lease(Lease&&) noexcept = default;
  Lease& operator=(Lease&&) noexcept = default;

 private:
  static Result<Lease> take(storage::Storage& storage, const SaveIdentity& identity, std::string_view file_name,
                            Progress progress);
  explicit Lease(std::jthread heartbeat) : heartbeat_(std::move(heartbeat)) {}
  std::jthread heartbeat_;
};

// Who holds a lease, as its file says.
struct LeaseHolder {
  SaveIdentity identity;
  os::ProcessIdentity process;
  std::optional<ProgressReport> progress = {};  // as of its last heartbeat; nullopt if the lease does not say
};
// `name` is relative to the checkpoint's directory. Nullopt if the text is none of ours, or not complete yet.
Result<std::optional<LeaseHolder>> read_lease(const storage::Storage& storage, std::string_view name);

// Whether no process works in this folder any more: of each lease in it the process is dead or, where that can't be
// seen from this host, the last heartbeat is five minutes older than the time on `clock`.
Result<bool> lease_has_run_out(const storage::Storage& storage, std::string_view folder, const StorageClock& clock);

}  // namespace cairn::commit
