// Reads any bytes as each file in a save's private folder that a foreign process may read: leases, the marks of failed
// ranks, the decision, and the list of replaced files, which a later save removes. Reads the bytes as the `.metadata`
// and the index in place too. The removal must never remove a file that is not a data file, nor a file that the
// checkpoint in place needs.
#include <cairn/options.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "commit/lease.h"
#include "commit/leftovers.h"
#include "commit/meeting/save_marks.h"
#include "commit/metadata_in_place.h"
#include "commit/model/model_in_place.h"
#include "commit/progress_tracker.h"
#include "decoding_bounds.h"
#include "format/manifest/commit_record.h"
#include "format/safetensors/index.h"
#include "storage/testing/model_storage.h"

namespace private_folder_fuzz {

namespace {

using cairn::storage::ModelStorage;

constexpr cairn::SaveId kDeadSave{1, 2};
constexpr std::string_view kNeeded = "__0_0.distcp";
constexpr std::string_view kOfOthers = "notes.txt";

void make(ModelStorage& disk, std::string_view name, std::string_view bytes) {
  if (!disk.create_whole(name, bytes, cairn::Durability::kBuffered)) std::abort();
}

bool holds(const ModelStorage& disk, std::string_view name) { return disk.open(name, false).has_value(); }

// Makes a checkpoint, and the private folder of a dead save with `input` as each of its files.
void fill(ModelStorage& disk, std::string_view input) {
  cairn::manifest::CommitRecord record;
  record.files.push_back({std::string(kNeeded), 1, 0});
  make(disk, ".metadata", cairn::manifest::encode_commit_record(record));
  make(disk, kNeeded, "x");
  make(disk, kOfOthers, "x");
  const std::string folder = cairn::commit::folder_of(kDeadSave);
  if (!disk.make_folder(folder)) std::abort();
  for (const char* const name : {"lease", "lease-1", "failed-2", "failed", "committed", "replaced"}) {
    make(disk, folder + "/" + name, input);
  }
}

// A decoded line must encode to a line that decodes to an equal report.
void read_progress_line(std::string_view line) {
  const cairn::fuzz::DecodingBounds bounds(line.size());
  const auto report = cairn::commit::decode_progress_line(line);
  if (!report) return;
  const std::string encoded = cairn::commit::encode_progress_line(*report);
  const auto again = cairn::commit::decode_progress_line(encoded);
  if (!again || cairn::commit::encode_progress_line(*again) != encoded) std::abort();
}

// Two looks at one index of a model must find one identity.
void read_as_index(std::string_view input) {
  ModelStorage disk;
  make(disk, cairn::safetensors::kIndexName, input);
  const cairn::fuzz::DecodingBounds bounds(2 * input.size());
  const auto first = cairn::commit::read_index_in_place(disk);
  const auto second = cairn::commit::read_index_in_place(disk);
  if (!first || !second || !first->present || !first->same_as(*second)) std::abort();
}

// Two looks at one `.metadata` must find one identity.
void read_as_metadata(std::string_view input) {
  ModelStorage disk;
  make(disk, ".metadata", input);
  const cairn::fuzz::DecodingBounds bounds(2 * input.size());
  const auto first = cairn::commit::read_metadata_in_place(disk);
  const auto second = cairn::commit::read_metadata_in_place(disk);
  if (first.has_value() != second.has_value() || (first && !first->same_as(*second))) std::abort();
  if (first && !first->present) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  read_as_metadata(input);
  read_as_index(input);
  read_progress_line(input);
  ModelStorage disk;
  fill(disk, input);
  const std::string folder = cairn::commit::folder_of(kDeadSave);
  cairn::commit::SaveMarks marks(disk, kDeadSave);
  {
    const cairn::fuzz::DecodingBounds bounds(6 * size);
    (void)cairn::commit::read_lease(disk, folder + "/lease");
    (void)marks.look();
    (void)marks.find_decision();
  }
  {
    const cairn::fuzz::DecodingBounds bounds(6 * size);
    (void)cairn::commit::clean_up_after(disk, kDeadSave);
  }
  if (!holds(disk, ".metadata") || !holds(disk, kNeeded) || !holds(disk, kOfOthers)) std::abort();
  return 0;
}

}  // namespace private_folder_fuzz
