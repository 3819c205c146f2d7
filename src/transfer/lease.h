// Lease: says in the storage who is saving, so that others know whether leftovers still have an owner.
//
// Every save has a private folder `.cairn-<save id>/` inside the checkpoint's directory; the file `lease` in it names
// the job and the process, and its time of change is a heartbeat.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <thread>

#include "os/process_identity.h"
#include "storage/storage.h"

namespace cairn::transfer {

// Which save this is among those of its job.
struct SaveIdentity {
  SaveId save_id;
  SaveId job_id;
  std::uint64_t save_number = 0;
};

inline constexpr std::string_view kFolderPrefix = ".cairn-";
std::string folder_of(const SaveId& save_id);
// The other way; nullopt if the name is not that of a private folder.
std::optional<SaveId> save_id_of_folder(std::string_view name);

// Keeps a lease alive until destroyed: a thread of its own touches the file.
class Lease {
 public:
  // Makes the save's folder with a lease in it. An error with EEXIST if the folder is there.
  static Result<Lease> take_with_folder(storage::Storage& storage, const SaveIdentity& identity);

  Lease(Lease&&) noexcept = default;
  Lease& operator=(Lease&&) noexcept = default;

 private:
  static Result<Lease> take(storage::Storage& storage, const SaveIdentity& identity);
  explicit Lease(std::jthread heartbeat) : heartbeat_(std::move(heartbeat)) {}
  std::jthread heartbeat_;
};

// Whether nobody works in this folder any more: its process is dead, or its heartbeat stopped long ago.
Result<bool> lease_has_run_out(const storage::Storage& storage, std::string_view folder);

}  // namespace cairn::transfer
