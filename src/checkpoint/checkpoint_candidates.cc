#include "checkpoint/checkpoint_candidates.h"

#include <cairn/bucket_url.h>
#include <cairn/catalog.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <system_error>
#include <tuple>
#include <utility>

#include "checkpoint/checkpoint_impl.h"
#include "checkpoint/open_calls.h"
#include "checkpoint/safetensors_model.h"
#include "commit/job_identity.h"
#include "commit/lease.h"
#include "core/checksum.h"
#include "core/step_in_name.h"
#include "data_file/data_file.h"
#include "format/manifest/commit_record.h"
#include "os/parallel.h"
#include "storage/open_directory.h"
#include "storage/staleness.h"

namespace cairn::checkpointer {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kPickleBytesRead = std::uint64_t{1} << 20;
constexpr std::uint64_t kPickleBytesReadRemote = std::uint64_t{32} << 20;  // by several requests at a time
constexpr std::size_t kRequestsInFlight = 16;                              // to a bucket, where each request waits
// The directory in which a file system keeps lost files: only root may enter, and no program saves into it.
constexpr std::string_view kLostAndFound = "lost+found";

bool is_newer(const Candidate& a, const Candidate& b) {
  const auto key_of = [](const Candidate& candidate) {
    const std::uint64_t save_number = candidate.order ? candidate.order->save_number : 0;
    const std::uint64_t job_start = candidate.has_job_start() ? candidate.order->job_start : 0;
    const double time = candidate.has_job_start() ? 0 : candidate.time;
    return std::tuple(job_start, time, save_number, !candidate.is_copy(), step_in_name(candidate.directory));
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

Result<std::optional<Candidate::Order>> order_in(const storage::Storage& storage, const std::string& metadata_name) {
  CAIRN_TRY_ASSIGN(const auto metadata, storage.open(metadata_name, true));
  CAIRN_TRY_ASSIGN(const std::optional<manifest::CommitRecord> record, record_in(*metadata));
  if (!record) return std::optional<Candidate::Order>();
  commit::order_saves_after(to_hex(record->job_id), record->job_start);
  return std::optional(Candidate::Order{record->job_start, record->save_number, record->is_copy()});
}

bool is_symbolic_link(const fs::path& path) {
  std::error_code failure;
  return fs::is_symlink(fs::symlink_status(path, failure));
}

// Of a directory that can't be looked into, or of a link to nothing. A save changes the time of its directory.
double time_of_directory(const fs::path& directory) {
  struct stat status {};
  const bool is_found =
      ::stat(directory.c_str(), &status) == 0 || (errno == ENOENT && ::lstat(directory.c_str(), &status) == 0);
  if (!is_found) return std::numeric_limits<double>::infinity();
  return static_cast<double>(status.st_mtim.tv_sec) + static_cast<double>(status.st_mtim.tv_nsec) * 1e-9;
}

// Nullopt if the directory holds no metadata of this name.
std::optional<Candidate> candidate_in(const OpenDirectory& open, const fs::path& directory,
                                      const std::string& metadata_name) {
  Candidate candidate{directory, metadata_name};
  const auto unreadable = [&candidate](Error fault) -> std::optional<Candidate> {
    candidate.fault = storage::unavailable_if_stale(std::move(fault));  // a job must not start from an older one
    return candidate;
  };
  const auto storage = open(directory);
  if (!storage) {
    const bool is_absent = storage::is_absent(storage.error());
    candidate.is_dangling = is_absent && is_symbolic_link(directory);
    const bool is_gone = is_absent && !candidate.is_dangling;
    if (is_gone || directory.filename() == kLostAndFound) return std::nullopt;
    candidate.time = time_of_directory(directory);
    if (!candidate.is_dangling) return unreadable(storage.error());
    return unreadable(Error(ErrorCode::kNotFound, "a symbolic link to a directory that does not exist"));
  }
  const Result<double> time = (*storage)->touched_at(metadata_name);
  if (!time && storage::is_absent(time.error())) return std::nullopt;
  if (!time) {
    candidate.time = time_of_directory(directory);
    return unreadable(time.error());
  }
  candidate.time = *time;
  Result<std::optional<Candidate::Order>> order = order_in(**storage, metadata_name);
  if (!order) {
    // A name that is still there is a link to a missing file.
    const bool is_removed = storage::is_absent(order.error()) && !(*storage)->touched_at(metadata_name);
    return is_removed ? std::nullopt : unreadable(std::move(order).error().file(metadata_name));
  }
  candidate.order = *order;
  return candidate;
}

// Nullopt if the directory holds no model that Cairn has saved.
std::optional<Candidate> model_in(const OpenDirectory& open, const fs::path& directory) {
  const auto storage = open(directory);
  if (!storage || !holds_model_alone(**storage)) return std::nullopt;
  Candidate candidate{directory, {}};
  const auto read = order_of_model(**storage);
  if (!read && read.error().code() == ErrorCode::kNotFound) {
    candidate.fault = Error(ErrorCode::kCorrupt, "a file of the model is missing").actual(read.error().what());
    return candidate;
  }
  if (!read) {
    candidate.fault = read.error();
    return candidate;
  }
  const std::optional<safetensors::SaveOrder>& order = *read;
  if (!order) return std::nullopt;
  commit::order_saves_after(order->job_id, order->job_start);
  candidate.order = {order->job_start, order->save_number,
                     commit::save_id_of_hex(order->job_id).value_or(SaveId()) == SaveId()};
  return candidate;
}

// The candidates of each way to tell their order.
struct Kinds {
  std::vector<Candidate> by_record;
  std::vector<Candidate> by_time;
  std::vector<Candidate> copies;  // without a start: after all others

  void add(Candidate candidate) {
    std::vector<Candidate>& kind = candidate.has_job_start() ? by_record : candidate.is_copy() ? copies : by_time;
    kind.push_back(std::move(candidate));
  }
};

// Whether the first of the candidates without a start is newer than the first with a start. The metadata of a copy has
// the time of the conversion, which says nothing.
bool is_newer_by_time(const Candidate& by_time, const Candidate& by_record) {
  return by_record.is_copy() || by_time.time > by_record.time;
}

void append_in_order(std::vector<Candidate>& all, Kinds kinds) {
  for (auto* kind : {&kinds.by_record, &kinds.by_time, &kinds.copies}) std::sort(kind->begin(), kind->end(), is_newer);
  auto by_record = kinds.by_record.begin();
  auto by_time = kinds.by_time.begin();
  while (by_record != kinds.by_record.end() || by_time != kinds.by_time.end()) {
    const bool takes_time = by_record == kinds.by_record.end() ||
                            (by_time != kinds.by_time.end() && is_newer_by_time(*by_time, *by_record));
    all.push_back(std::move(takes_time ? *by_time++ : *by_record++));
  }
  std::move(kinds.copies.begin(), kinds.copies.end(), std::back_inserter(all));
}

Error too_short(const std::string& file, std::uint64_t expected, std::uint64_t actual, std::string_view relation) {
  return Error(ErrorCode::kCorrupt, "the size of a data file differs from the metadata")
      .file(file)
      .expected(std::string(relation) + std::to_string(expected) + " bytes")
      .actual(std::to_string(actual) + " bytes");
}

// Calls `work(i)` for each i below `count` until one fails: in order, or on several threads for the places of a bucket.
Result<void> for_each_index(std::size_t count, bool is_remote, const std::function<Result<void>(std::size_t)>& work) {
  const std::size_t threads = is_remote ? std::min(count, kRequestsInFlight) : 1;
  if (threads <= 1) {
    for (std::size_t i = 0; i < count; ++i) CAIRN_TRY(work(i));
    return {};
  }
  std::atomic<std::size_t> next{0};
  return os::run_parallel(threads, {}, [&](std::size_t, os::StopFlag& stop) -> Result<void> {
    for (std::size_t i = next.fetch_add(1); i < count && !stop.is_set(); i = next.fetch_add(1)) CAIRN_TRY(work(i));
    return {};
  });
}

Result<void> check_files(const storage::Storage& storage, const manifest::CommitRecord& record, bool has_trailers,
                         Depth depth) {
  return for_each_index(record.files.size(), !storage.has_rename(), [&](std::size_t i) -> Result<void> {
    const manifest::CommitRecord::File& file = record.files[i];
    if (depth == Depth::kTrailers && has_trailers) {
      CAIRN_TRY(data_file::DataFile::open(storage, file.name, true, &file, record.save_id));
      return {};
    }
    CAIRN_TRY_ASSIGN(const auto opened, storage.open(file.name, true));
    if (opened->size() != file.size) return too_short(file.name, file.size, opened->size(), "");
    return {};
  });
}

// The pickle is decoded, since nothing else shows a damage.
Result<void> check_stock(std::unique_ptr<storage::Storage> storage, const std::string& metadata_name) {
  CAIRN_TRY_ASSIGN(const Checkpoint checkpoint, open_in(std::move(storage), metadata_name));
  const Catalog& catalog = checkpoint.catalog();
  std::vector<std::uint64_t> ends(catalog.files.size());
  const auto note = [&ends](const std::string& fqn, const ItemLocation& location) -> Result<void> {
    if (location.length == 0) return Error(ErrorCode::kCorrupt, "the metadata names no bytes for a key").key(fqn);
    const std::uint64_t end = location.offset + std::min(location.length, UINT64_MAX - location.offset);
    ends[location.file] = std::max(ends[location.file], end);
    return {};
  };
  for (const CatalogTensor& tensor : catalog.tensors) {
    for (std::size_t i = 0; i < tensor.chunk_count(); ++i) {
      const bool has_bytes = tensor.locations[i].length != 0 || tensor.chunk(i).element_count() != 0;
      if (has_bytes) CAIRN_TRY(note(tensor.fqn, tensor.locations[i]));
    }
  }
  for (const CatalogValue& value : catalog.values) CAIRN_TRY(note(value.fqn, value.location));
  for (std::size_t i = 0; i < ends.size(); ++i) {
    CAIRN_TRY_ASSIGN(const auto opened, checkpoint.impl().storage->open(catalog.files[i], true));
    if (opened->size() < ends[i]) return too_short(catalog.files[i], ends[i], opened->size(), "at least ");
  }
  return {};
}

Result<bool> has_recorded_checksum(const storage::ReadableFile& metadata, const manifest::CommitRecord& record) {
  const std::uint64_t piece_bytes = metadata.requests_in_flight() == 0 ? kPickleBytesRead : kPickleBytesReadRemote;
  std::vector<std::byte> piece(std::min(record.front_bytes, piece_bytes));
  std::uint32_t checksum = 0;
  for (std::uint64_t offset = 0; offset < record.front_bytes; offset += piece.size()) {
    piece.resize(std::min(record.front_bytes - offset, piece_bytes));
    CAIRN_TRY(metadata.read_at(offset, piece));
    checksum = crc32(piece, checksum);
  }
  return checksum == record.front_checksum;
}

Result<void> check_once(const OpenDirectory& open, const Candidate& candidate, Depth depth) {
  CAIRN_TRY_ASSIGN(auto storage, open(candidate.directory));
  if (candidate.is_model()) {
    CAIRN_TRY(open_safetensors(std::move(storage), {}));
    return {};
  }
  CAIRN_TRY_ASSIGN(const auto metadata, storage->open(candidate.metadata_name, true));
  CAIRN_TRY_ASSIGN(const std::optional<manifest::CommitRecord> record, record_in(*metadata));
  if (!record) return check_stock(std::move(storage), candidate.metadata_name);
  CAIRN_TRY_ASSIGN(const bool is_intact, has_recorded_checksum(*metadata, *record));
  CAIRN_TRY(check_files(*storage, *record, !candidate.is_directory_of_files(), depth));
  // A load can do without the compact catalog, which the checksum covers too. The error of the opening names the rest.
  if (!is_intact) CAIRN_TRY(open_in(std::move(storage), candidate.metadata_name));
  return {};
}

std::optional<double> time_of(const OpenDirectory& open, const Candidate& candidate) {
  if (candidate.is_model()) return std::nullopt;
  const auto storage = open(candidate.directory);
  const auto time = storage ? (*storage)->touched_at(candidate.metadata_name) : Result<double>(storage.error());
  return time ? std::optional(*time) : std::nullopt;
}

// The candidates of one directory.
std::vector<Candidate> candidates_of(const OpenDirectory& open, const fs::path& directory,
                                     const std::vector<std::string>& names) {
  std::vector<Candidate> candidates;
  for (const std::string& name : names) {
    std::optional<Candidate> found = candidate_in(open, directory, name);
    if (!found) continue;
    const bool is_of_directory = found->fault && (found->is_dangling || leaves_open(*found->fault));
    candidates.push_back(*std::move(found));
    if (is_of_directory) break;  // one fault for the directory
  }
  if (!candidates.empty()) return candidates;
  auto files = candidate_in(open, directory, std::string(commit::kDirectoryRecordName));
  if (files) candidates.push_back(*std::move(files));
  return candidates;
}

}  // namespace

Result<std::unique_ptr<storage::Storage>> open_plainly(const fs::path& directory) {
  return storage::open_directory(directory);
}

std::vector<Candidate> candidates_in(const CheckpointDirectories& directories, std::optional<std::uint32_t> rank,
                                     Models models, const OpenDirectory& open) {
  std::vector<std::string> names{std::string(kMetadataName)};
  if (rank) names.push_back(metadata_name(rank));
  const bool is_remote = !directories.empty() && is_bucket_url(directories.front());
  std::vector<std::vector<Candidate>> of_directories(directories.size());
  const Result<void> looked = for_each_index(directories.size(), is_remote, [&](std::size_t i) -> Result<void> {
    of_directories[i] = candidates_of(open, directories[i], names);
    return {};
  });
  looked.value();  // an exception of the work
  Kinds checkpoints;
  for (std::vector<Candidate>& candidates : of_directories) {
    for (Candidate& candidate : candidates) checkpoints.add(std::move(candidate));
  }
  std::vector<Candidate> all;
  append_in_order(all, std::move(checkpoints));
  if (has_checkpoints(all) && models == Models::kIfAlone) return all;
  Kinds found_models;
  for (const fs::path& directory : directories) {
    if (std::optional<Candidate> model = model_in(open, directory)) found_models.add(*std::move(model));
  }
  append_in_order(all, std::move(found_models));
  return all;
}

std::optional<Error> fault_of(const Candidate& candidate, Depth depth, const OpenDirectory& open) {
  constexpr int kTriesMax = 16;
  for (int tries = 1;; ++tries) {
    const std::optional<double> before = time_of(open, candidate);
    Result<void> checked = check_once(open, candidate, depth);
    if (checked) return std::nullopt;
    if (tries == kTriesMax || time_of(open, candidate) == before) {
      Error fault = storage::unavailable_if_stale(std::move(checked).error());
      return candidate.is_model() ? std::move(fault) : std::move(fault).file(candidate.metadata_name);
    }
  }
}

bool has_checkpoints(const std::vector<Candidate>& candidates) {
  return std::any_of(candidates.begin(), candidates.end(),
                     [](const Candidate& it) { return !it.is_model() && !it.is_dangling; });
}

bool may_be_newer(const Candidate& candidate, const Candidate* newest) {
  if (newest == nullptr || candidate.time >= newest->time) return true;
  const std::optional<std::uint64_t> step = step_in_name(candidate.directory);
  return step && step > step_in_name(newest->directory);
}

bool leaves_open(const Error& fault) {
  // Of names in a file from outside: the name itself is the fault.
  constexpr std::array kOfNames{ELOOP, ENAMETOOLONG, ENOTDIR, EISDIR};
  return fault.code() == ErrorCode::kUnavailable &&
         std::find(kOfNames.begin(), kOfNames.end(), fault.error_number()) == kOfNames.end();
}

}  // namespace cairn::checkpointer
