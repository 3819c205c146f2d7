// Candidates: the checkpoints below a root in the order of latest(), and the check of a single candidate.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_directories.h"
#include "checkpoint/open_calls.h"
#include "commit/directory/new_directory.h"

namespace cairn::checkpointer {

// storage::open_directory, as an OpenDirectory.
Result<std::unique_ptr<storage::Storage>> open_plainly(const std::filesystem::path& directory);

struct Candidate {
  // The place of the save in the order of all saves.
  struct Order {
    std::uint64_t job_start = 0;  // 0: unknown
    std::uint64_t save_number = 0;
    bool is_copy = false;
  };

  std::filesystem::path directory;
  // Of the file that holds the commit record; empty: a safetensors model.
  std::string metadata_name;
  // Of the metadata, or of the link in its place; of the directory if the metadata can't be looked at. Seconds by the
  // clock of the storage; infinite if unknown.
  double time = 0;
  std::optional<Order> order = {};  // nullopt: a checkpoint of stock torch, or the order can't be read
  std::optional<Error> fault = {};  // the order can't be read
  bool is_dangling = false;         // the directory is a link to nothing: a fault

  bool is_model() const { return metadata_name.empty(); }
  // Whether Cairn saved the directory in the form of torch_checkpointing (commit/directory/new_directory.h).
  bool is_directory_of_files() const { return metadata_name == commit::kDirectoryRecordName; }
  // Whether the commit record orders the candidate; otherwise the time of the metadata does.
  bool has_job_start() const { return order && order->job_start != 0; }
  bool is_copy() const { return order && order->is_copy; }
};

// kIfAlone: models only if no directory holds a DCP checkpoint, not even an unusable one. Links to nothing hold none.
enum class Models : std::uint8_t { kIfAlone, kListed };

// The candidates in the order of latest(), the newest first; a candidate whose order can't be read has its place by the
// time of its metadata. The models that Cairn has saved come last. With `rank` also the checkpoints that this rank
// saved alone. Of a directory in the form of torch_checkpointing Cairn's record tells the order: without the record,
// nothing in the directory does, and it is left out. Reads the commit record of each directory, and neither pickles nor
// data files.
std::vector<Candidate> candidates_in(const CheckpointDirectories& directories, std::optional<std::uint32_t> rank,
                                     Models models, const OpenDirectory& open = open_plainly);

// Why a load of the candidate would fail; nullopt if the metadata has the recorded checksums and if all data files are
// there with the recorded sizes. Of a stock checkpoint the pickle must be readable, and no data file may be missing or
// too short for its items. Reads no data file. A checkpoint that a save replaces meanwhile is looked at again. With
// kTrailers the trailer of each data file must also have the recorded checksum.
enum class Depth : std::uint8_t { kSizes, kTrailers };
std::optional<Error> fault_of(const Candidate& candidate, Depth depth = Depth::kSizes,
                              const OpenDirectory& open = open_plainly);

// Whether a directory holds a DCP checkpoint, maybe an unusable one.
bool has_checkpoints(const std::vector<Candidate>& candidates);

// Whether `candidate`, whose order can't be read, may be newer than `newest`, the newest of the candidates with an
// order; null: there is none. False if the candidate has an earlier time than `newest`, and no greater number in the
// name.
bool may_be_newer(const Candidate& candidate, const Candidate* newest);

// Whether `fault` leaves open if the candidate is whole: the system refused an operation, or a call timed out.
bool leaves_open(const Error& fault);

}  // namespace cairn::checkpointer
