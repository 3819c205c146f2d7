// The private folder of a save, and its removal.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "commit/storage_clock.h"
#include "storage/storage.h"

namespace cairn::commit {

// The list of the files that the commit replaces, in the folder before the commit. If the process dies, a later save
// finishes the removal from the list.
inline constexpr std::string_view kReplacedName = "replaced";
// The largest list that a later save reads.
inline constexpr std::uint64_t kReplacedBytesMax = std::uint64_t{1} << 30;

// Removes a private folder with its files. kLease: removes all files but the lease, which still names the save of the
// remaining data files.
enum class Keep : std::uint8_t { kNothing, kLease };
void remove_private_folder(storage::Storage& storage, std::string_view folder, std::vector<std::string>& warnings,
                           Keep keep = Keep::kNothing);

// Whether the error of a join means that the folder is one of a different user: its lease is not trusted.
bool is_of_other_user(const Error& error);

// Whether the save of a joined folder is dead by `clock`. Removes the folder if the folder is empty and the save does
// not look dead.
Result<bool> is_dead_save(storage::Storage& storage, const std::string& folder, const StorageClock& clock);

// Removes the folder of a dead save, and the files that `remove_files` removes: kFirst, if the save has data files,
// removes the save's sealed files before. A warning of any step ends the removal before the lease.
enum class SealedFiles : std::uint8_t { kFirst, kWithTheLease };
void remove_dead_folder(storage::Storage& storage, const std::string& folder, SealedFiles sealed,
                        std::vector<std::string>& warnings, const std::function<void()>& remove_files);

}  // namespace cairn::commit
