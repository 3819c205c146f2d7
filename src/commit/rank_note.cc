#include "commit/rank_note.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <sstream>

#include "commit/lease.h"

namespace cairn::commit {
namespace {

constexpr std::string_view kNotePrefix = ".cairn-rank-";
// A rank has at most a few saves in flight; the rest are dead saves of which another host still holds the lease.
constexpr std::size_t kNotedSavesMax = 16;
constexpr std::size_t kLineBytes = 33;

}  // namespace

std::string rank_note_name(std::uint32_t rank) { return std::string(kNotePrefix) + std::to_string(rank); }

std::vector<SaveId> read_rank_note(const storage::Storage& storage, std::uint32_t rank) {
  std::vector<SaveId> saves;
  const Result<std::string> text = storage::read_small(storage, rank_note_name(rank), kNotedSavesMax * kLineBytes);
  if (!text) return saves;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    if (const std::optional<SaveId> save = save_id_of_hex(line)) saves.push_back(*save);
  }
  return saves;
}

void write_rank_note(storage::Storage& storage, std::uint32_t rank, const std::vector<SaveId>& saves,
                     std::string_view folder) {
  const std::string name = rank_note_name(rank);
  if (saves.empty()) {
    (void)storage.remove(name);
    return;
  }
  std::string text;
  const std::size_t dropped = saves.size() - std::min(saves.size(), kNotedSavesMax);
  for (std::size_t i = dropped; i < saves.size(); ++i) text += to_hex(saves[i]) + "\n";
  const std::string made = std::string(folder) + "/note";
  (void)storage.remove(made);
  if (storage.create_whole(made, text, Durability::kBuffered)) (void)storage.replace(made, name);
}

}  // namespace cairn::commit
