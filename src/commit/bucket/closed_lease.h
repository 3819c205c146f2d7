// Closed leases: how a process makes sure that a save, taken for dead, will not commit any more, in a storage without
// a rename. The steps are at the top of bucket_commit.cc.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <optional>
#include <string>

#include "commit/lease.h"
#include "commit/metadata_in_place.h"
#include "storage/storage.h"

namespace cairn::commit {

struct LeaseClosing {
  bool is_closed = false;                  // false: a heartbeat came first, the save lives
  std::optional<LeaseHolder> holder = {};  // of the closed lease; nullopt if the lease is missing, which closes as well
};
// Closes the lease of the save in `folder` if the text in place is still the one that this call reads. A closed lease
// stays as it is.
Result<LeaseClosing> close_lease(storage::Storage& storage, const std::string& folder);

// What became of the commit of a save whose lease is closed or missing.
enum class ClosedSave : std::uint8_t {
  kInPlace,     // the metadata file is the save's
  kNotInPlace,  // it is not, and will not be: the save has failed, or was replaced
  kUnknown,     // the last write that the lease announces may still happen
};
struct ClosedSaveState {
  ClosedSave what = ClosedSave::kUnknown;
  MetadataInPlace in_place;  // the metadata file, read after the closing
};
// `holder`: of the closed lease.
Result<ClosedSaveState> state_of_closed_save(const storage::Storage& storage, const SaveId& save_id,
                                             const std::optional<LeaseHolder>& holder);

}  // namespace cairn::commit
