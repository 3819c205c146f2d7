#include <cairn/latest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "checkpointer/checkpoint_directories.h"
#include "checkpointer/job_identity.h"
#include "checkpointer/safetensors_model.h"
#include "checkpointer/step_in_name.h"
#include "commit/lease.h"
#include "commit/save_transaction.h"
#include "format/manifest/commit_record.h"
#include "storage/backoff.h"
#include "storage/open_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using checkpointer::checkpoint_directories;
using checkpointer::CheckpointDirectories;

bool has_save_in_flight(const fs::path& directory) {
  const auto opened = storage::open_directory(directory);
  if (!opened) return false;
  const storage::Storage& storage = **opened;
  const auto files = storage.list();
  return files && std::any_of(files->begin(), files->end(), [&](const storage::ListedFile& file) {
           const bool is_of_save =
               commit::save_id_of_folder(file.name) || commit::save_id_of_folder(file.name, commit::SaveForm::kModel);
           if (!file.is_folder || !is_of_save) return false;
           const Result<bool> run_out =
               commit::lease_has_run_out(storage, file.name, commit::StorageClock::of_this_host());
           return run_out && !*run_out;
         });
}

Result<void> wait_for_saves(const fs::path& root, const LatestOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  for (storage::Backoff backoff; std::chrono::steady_clock::now() - start < options.wait; backoff.pause()) {
    if (options.interrupted && options.interrupted()) {
      return Error(ErrorCode::kCancelled, "interrupted while waiting for saves in flight");
    }
    CAIRN_TRY_ASSIGN(const std::optional<CheckpointDirectories> directories, checkpoint_directories(root));
    if (!directories || std::none_of(directories->begin(), directories->end(), has_save_in_flight)) break;
  }
  return {};
}

// A checkpoint that latest() compares.
struct Candidate {
  fs::path directory;
  double time = 0;  // of the metadata, or of the link in its place; seconds by the clock of the storage
  std::optional<manifest::CommitRecord> record;
  bool is_model = false;  // a safetensors model; `record` has only the place of the save in the order of all saves

  // Whether the commit record orders the candidate; otherwise the time of the metadata does.
  bool has_job_start() const { return record && record->job_start != 0; }
  bool is_copy() const { return record && record->is_copy(); }
};

bool is_newer(const Candidate& a, const Candidate& b) {
  const auto key_of = [](const Candidate& candidate) {
    const std::uint64_t save_number = candidate.record ? candidate.record->save_number : 0;
    const std::uint64_t job_start = candidate.has_job_start() ? candidate.record->job_start : 0;
    const double time = candidate.has_job_start() ? 0 : candidate.time;
    const std::uint64_t step = checkpointer::step_in_name(candidate.directory);
    return std::tuple(job_start, time, save_number, !candidate.is_copy(), step);
  };
  const auto key_a = key_of(a), key_b = key_of(b);
  return key_a != key_b ? key_a > key_b : a.directory < b.directory;
}

// The metadata's commit record; nullopt for a checkpoint of stock torch.
Result<std::optional<manifest::CommitRecord>> record_in(const storage::ReadableFile& metadata) {
  CAIRN_TRY_ASSIGN(std::optional<manifest::CommitRecord> record, manifest::read_only_commit_record(metadata));
  if (record) return record;
  constexpr std::byte kStop{'.'};  // the last opcode of every pickle
  std::array<std::byte, 1> last{};
  if (metadata.size() != 0) CAIRN_TRY(metadata.read_at(metadata.size() - 1, last));
  if (last[0] != kStop) return Error(ErrorCode::kCorrupt, "the metadata is cut short");
  return record;
}

void order_saves_after(const manifest::CommitRecord& record) {
  checkpointer::order_saves_after(to_hex(record.job_id), record.job_start);
}

// Nullopt if the directory holds no metadata of this name.
Result<std::optional<Candidate>> candidate_in(const fs::path& directory, const std::string& metadata_name) {
  CAIRN_TRY_ASSIGN(const auto storage, storage::open_directory(directory));
  const Result<double> time = storage->touched_at(metadata_name);
  if (!time && time.error().code() == ErrorCode::kNotFound) return std::optional<Candidate>();
  if (!time) return time.error();
  CAIRN_TRY_ASSIGN(const auto metadata, storage->open(metadata_name, true));
  Candidate candidate{directory, *time, {}};
  auto record = record_in(*metadata);
  if (!record) return std::move(record).error().file(metadata_name);
  candidate.record = std::move(*record);
  if (candidate.record) order_saves_after(*candidate.record);
  return std::optional(std::move(candidate));
}

// Nullopt if the directory holds no model that Cairn has saved.
Result<std::optional<Candidate>> model_in(const fs::path& directory) {
  CAIRN_TRY_ASSIGN(const auto storage, storage::open_directory(directory));
  if (!checkpointer::holds_model_alone(*storage)) return std::optional<Candidate>();
  const auto read = checkpointer::order_of_model(*storage);
  if (!read && read.error().code() == ErrorCode::kNotFound) {
    return Error(ErrorCode::kCorrupt, "a file of the model is missing").actual(read.error().what());
  }
  if (!read) return read.error();
  const std::optional<safetensors::SaveOrder>& order = *read;
  if (!order) return std::optional<Candidate>();
  Candidate candidate{directory, 0, manifest::CommitRecord(), true};
  candidate.record->job_id = commit::save_id_of_hex(order->job_id).value_or(SaveId());
  candidate.record->job_start = order->job_start;
  candidate.record->save_number = order->save_number;
  order_saves_after(*candidate.record);
  return std::optional(std::move(candidate));
}

Result<void> check_whole(const Candidate& candidate) {
  if (!candidate.record) return {};
  CAIRN_TRY_ASSIGN(auto storage, storage::open_directory(candidate.directory));
  if (candidate.is_model) {
    CAIRN_TRY(checkpointer::open_safetensors(std::move(storage), {}));
    return {};
  }
  for (const manifest::CommitRecord::File& file : candidate.record->files) {
    CAIRN_TRY_ASSIGN(const auto opened, storage->open(file.name, true));
    const std::uint64_t size = opened->size();
    if (size == file.size) continue;
    return Error(ErrorCode::kCorrupt, "the size of a data file differs from the commit record")
        .file(file.name)
        .expected(std::to_string(file.size) + " bytes")
        .actual(std::to_string(size) + " bytes");
  }
  return {};
}

// Finds the candidates, and reports unusable checkpoints to LatestOptions::passed_over.
class Search {
 public:
  explicit Search(const LatestOptions& options) : options_(options) {}

  void look_at(const fs::path& directory) {
    look_at(directory, candidate_in(directory, std::string(kMetadataName)));
    if (options_.rank) look_at(directory, candidate_in(directory, metadata_name(options_.rank)));
  }

  // Only without a checkpoint of DCP.
  void look_at_models(const std::vector<fs::path>& directories) {
    if (found_any_) return;
    for (const fs::path& directory : directories) look_at(directory, model_in(directory));
  }

  std::optional<fs::path> newest() const {
    const Candidate* by_record = newest_whole(by_record_);
    const Candidate* by_time = newest_whole(by_time_);
    if (by_record == nullptr && by_time == nullptr) {
      const Candidate* copy = newest_whole(copies_);
      return copy != nullptr ? std::optional(copy->directory) : std::nullopt;
    }
    if (by_record == nullptr || by_time == nullptr) return (by_record != nullptr ? by_record : by_time)->directory;
    if (by_record->is_copy()) return by_time->directory;  // the time is the time of the conversion
    return (by_time->time > by_record->time ? by_time : by_record)->directory;
  }

 private:
  void look_at(const fs::path& directory, Result<std::optional<Candidate>> found) {
    if (!found && found.error().code() == ErrorCode::kNotFound) return;  // removed after the listing
    if (found && !*found) return;
    found_any_ = true;
    if (!found) return pass_over(directory, std::move(found).error());
    const bool has_start = (*found)->has_job_start();
    std::vector<Candidate>& kind = has_start ? by_record_ : (*found)->is_copy() ? copies_ : by_time_;
    kind.push_back(**std::move(found));
  }

  const Candidate* newest_whole(const std::vector<Candidate>& kind) const {
    std::vector<const Candidate*> sorted;
    sorted.reserve(kind.size());
    for (const Candidate& candidate : kind) sorted.push_back(&candidate);
    std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return is_newer(*a, *b); });
    for (const Candidate* candidate : sorted) {
      Result<void> whole = check_whole(*candidate);
      if (whole) return candidate;
      pass_over(candidate->directory, std::move(whole).error());
    }
    return nullptr;
  }

  void pass_over(const fs::path& directory, Error reason) const {
    const std::string action = "looking for the newest checkpoint: '" + directory.string() + "' is passed over";
    if (options_.passed_over) options_.passed_over(std::move(reason).while_doing(action));
  }

  const LatestOptions& options_;
  bool found_any_ = false;            // a candidate, or a checkpoint that is passed over
  std::vector<Candidate> by_record_;  // ordered by their commit records
  std::vector<Candidate> by_time_;    // ordered by the times of their metadata
  std::vector<Candidate> copies_;     // without a start: after all others
};

}  // namespace

Result<std::optional<fs::path>> latest(const fs::path& root, const LatestOptions& options) {
  CAIRN_TRY(wait_for_saves(root, options));
  CAIRN_TRY_ASSIGN(const std::optional<CheckpointDirectories> directories, checkpoint_directories(root));
  if (!directories) {
    const Error missing = Error(ErrorCode::kNotFound, "no such directory: there is no checkpoint").file(root.string());
    if (options.passed_over) options.passed_over(missing);
    return std::optional<fs::path>();
  }
  Search search(options);
  for (const fs::path& directory : *directories) search.look_at(directory);
  search.look_at_models(*directories);
  return search.newest();
}

}  // namespace cairn
