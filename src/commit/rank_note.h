// The note of a rank: the file `.cairn-rank-<rank>`, which names the saves that a rank has begun alone in the directory
// and has not ended.
//
// The rank's next save finds the leftovers of a dead save by the note. Without notes each of N ranks would have to list
// the files of N ranks after each save. A lost note only leaves leftovers behind, until the next save of all ranks: the
// functions report no errors.
#pragma once

#include <cairn/catalog.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "storage/storage.h"

namespace cairn::commit {

std::string rank_note_name(std::uint32_t rank);

// The saves in the note, oldest first; empty if the note is missing or damaged. The note may come from another user:
// the names of the saves are unchecked.
std::vector<SaveId> read_rank_note(const storage::Storage& storage, std::uint32_t rank);

// Replaces the note; without saves, removes the note. `folder` is a private folder of this process, for the new file.
// Of very many saves only the newest are kept.
void write_rank_note(storage::Storage& storage, std::uint32_t rank, const std::vector<SaveId>& saves,
                     std::string_view folder);

}  // namespace cairn::commit
