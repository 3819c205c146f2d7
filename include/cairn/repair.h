// repair: rebuilds a lost or broken `.metadata` from the trailers of the data files, and removes the files of dead
// saves.
#pragma once

#include <cairn/catalog.h>
#include <cairn/latest.h>
#include <cairn/result.h>
#include <cairn/tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cairn {

struct RepairOptions {
  bool dry_run = false;  // changes nothing; the report says what a call without it would do
  // Also writes metadata for the data that are left, if data files are missing. latest() never takes the result for a
  // whole checkpoint.
  bool partial = false;
  // The save whose files the new metadata names: its id, as to_hex() gives it. Empty: the save is chosen if the files
  // leave no choice.
  std::string save = {};
  std::optional<std::uint32_t> rank = {};  // repairs `__{rank}.metadata`, of a rank that saved alone
  std::function<bool()> interrupted = {};  // called before each data file; true: kCancelled
};

// A tensor of which elements are in no data file.
struct LostElements {
  std::string key;
  Extents shape;
  std::int64_t elements = 0;  // lost; 0 if the chunks are too many to be compared
  std::vector<Box> regions;   // some of them: at most 16
};

// The data files of one save, by their trailers.
struct FoundSave {
  SaveId save_id;
  std::uint64_t files = 0;
  std::optional<std::uint64_t> expected_files = {};  // nullopt: the writer did not know the number
  bool is_leftover = false;                          // the save has a private folder: it has not ended
};

struct RepairReport {
  enum class Metadata : std::uint8_t {
    kGood,      // in place, and agrees with the data files; not touched
    kRebuilt,   // lost or broken, and written anew; in a dry run: would be written
    kUnusable,  // lost or broken, and not written; `problems` say why
    kDataLost,  // in place and intact, but data files that it names are missing or damaged; not touched
    kNone,      // neither metadata nor data files of an ended save: there is no checkpoint
  };

  Metadata metadata = Metadata::kNone;
  bool is_complete = false;       // a load finds all that the save has written
  std::optional<SaveId> save_id;  // of the checkpoint
  std::uint64_t files = 0;        // that the metadata names and that are in place
  std::uint64_t tensors = 0;      // of rebuilt metadata; `values` too
  std::uint64_t values = 0;
  std::string damaged_name;              // the name under which the broken metadata file is kept; may be empty
  std::uint64_t missing_files = 0;       // number of data files that are missing or damaged
  std::vector<std::string> missing;      // their names, as far as they are known
  std::vector<LostElements> lost;        // at most 1000
  std::vector<std::string> lost_values;  // of kDataLost: keys of values in missing files; at most 1000
  std::vector<FoundSave> saves;          // whose files are in the directory and in no other metadata file
  std::vector<CleanedSave> cleaned;      // dead saves whose files were removed
  std::vector<std::string> warnings;
  std::vector<Error> problems;  // damage, and the reasons for kUnusable; an error names its file
};

// Repairs the DCP checkpoint in `directory`.
//
// Metadata is good if it opens, and if each data file has the recorded size, save and trailer checksum: good metadata
// is never replaced, and neither is intact metadata of which data files are missing, unless `options.save` asks
// for the files of another save. New metadata names the files of one save alone, and is written only if no file of the
// save is missing, or with `partial`. The keys, shapes, dtypes, nested paths and values are those of the save. Their
// order may differ, and the attributes that a caller had added to DCP's metadata are lost. The notes, and the save's
// place in the order of latest(), come from a broken metadata file if its sections are intact. Without them the
// checkpoint has no notes, and has its place by the time of its youngest data file.
//
// The new metadata is committed by one rename, as by a save: a reader finds the old file or the new one, also after a
// crash. A broken file is kept as `.metadata.damaged` (with a number if the name is taken). The bytes of the tensors
// are not read: verify() does that.
//
// Then removes the files of dead saves in `directory`, as clean() does, unless the checkpoint could not be repaired:
// those files may be all that is left of it.
//
// kNotFound if `directory` is missing, kUnavailable if a save into the directory is under way, kUnsupported if a later
// version of Cairn wrote the metadata. A checkpoint of stock torch has no trailers, and a safetensors model no
// metadata file: both can't be rebuilt, which is a problem of the report.
Result<RepairReport> repair(const std::filesystem::path& directory, const RepairOptions& options = {});

}  // namespace cairn
