// Found saves: the data files in a directory, by the saves that wrote them, according to the trailers.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/seeded_hash.h"
#include "format/manifest/commit_record.h"
#include "storage/storage.h"

#include <unordered_set>

namespace cairn::checkpointer {

using FileNames = std::unordered_set<std::string, SeededHash>;

// A data file with an intact trailer.
struct FoundFile {
  std::string name;
  std::uint32_t rank = 0;
  std::uint32_t number = 0;  // among the rank's files of the save
  std::uint64_t size = 0;
  std::uint32_t trailer_checksum = 0;
};

struct SaveFiles {
  SaveId save_id;
  std::vector<FoundFile> files;                // by rank and number
  std::optional<std::uint64_t> expected = {};  // number of the save's data files; nullopt if no trailer has it
  bool is_leftover = false;                    // the save has a private folder
  std::vector<Error> problems = {};            // files of the save that are damaged, or contradict each other

  bool has_all_files() const { return problems.empty() && expected == files.size(); }
  bool is_of_rank(std::uint32_t rank) const;
};

struct FoundSaves {
  std::vector<SaveFiles> saves;
  std::vector<Error> unknown;         // data files without an intact trailer, whose save is unknown
  std::uint64_t without_trailer = 0;  // those among `unknown` that end in no trailer, as the files of stock torch
};

// `ignored`: files of other checkpoints in the directory. Reads the whole trailer of each other data file, one after
// the other. kCancelled if `interrupted` returns true.
Result<FoundSaves> find_saves(const storage::Storage& storage, const FileNames& ignored,
                              const std::function<bool()>& interrupted);

// The names of files that `save` lacks, as far as the numbers of the other files show them.
std::vector<std::string> names_of_missing(const SaveFiles& save);

}  // namespace cairn::checkpointer
