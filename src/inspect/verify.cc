// verify: five checks of a checkpoint: every file against the commit record, every byte against its checksum, every
// tensor against its chunks, every item of a file against the metadata, and the compact catalog of the metadata against
// its pickle.
#include <cairn/inspect.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_impl.h"
#include "checkpoint/open_calls.h"
#include "checkpoint/recorded_dtypes.h"
#include "checkpoint/recorded_files.h"
#include "core/byte_source.h"
#include "core/checksum.h"
#include "core/seeded_hash.h"
#include "data_file/archive_check.h"
#include "data_file/range_fetch.h"
#include "events/operation.h"
#include "format/torch_file/torch_opening.h"
#include "format/torch_file/value_archive.h"
#include "format/zip/directory.h"
#include "inspect/catalog_comparison.h"
#include "inspect/findings.h"
#include "os/parallel.h"
#include "plan/chunk_index.h"
#include "storage/watched_call.h"

namespace cairn {
namespace {

using checkpointer::Findings;
using checkpointer::kProblemsMax;
using data_file::DataFile;
using storage::Watch;

constexpr std::uint64_t kBatchBytes = 4 * 1024 * 1024;

// Bytes of a data file that share a checksum, or the bytes of a zip archive.
struct Span {
  const DataFile* file;
  std::uint64_t begin;
  std::uint64_t length;
  std::uint32_t crc;
  bool is_archive;       // of stock torch: the archive's records have checksums
  std::string_view key;  // may be empty
  // A record of a torch.save file, whose bytes begin somewhere behind `begin`; null for all other spans.
  const zip::DirectoryEntry* record = nullptr;
};

// The bytes of a tensor in a safetensors file, and their checksums.
struct SafetensorsRecord {
  const DataFile* file;
  StoredTensor stored;
  std::string_view key;

  std::size_t span_count() const { return stored.block_crcs.size(); }
  Span span(std::size_t index) const {
    const std::uint64_t begin = index * stored.block_bytes;
    const std::uint64_t length = std::min(stored.block_bytes, stored.record_bytes - begin);
    return {file, stored.record_offset + begin, length, stored.block_crcs[index], false, key};
  }
};

// Iterates over the spans of the files that Cairn wrote. A list of the spans of a large checkpoint would be too large.
class SpanWalk {
 public:
  // `files` outlives the walk; null for a file that could not be opened.
  explicit SpanWalk(const std::vector<const DataFile*>& files) : files_(files) {}

  std::optional<Span> next() {
    while (file_ < files_.size()) {
      const DataFile* file = files_[file_];
      const bool over = file == nullptr || !file->trailer() || frame_ > file->trailer()->item_count();
      if (!over) {
        if (auto span = next_of(*file)) return span;
        ++frame_;
        part_ = 0;
        continue;
      }
      ++file_;
      frame_ = 0;
    }
    return std::nullopt;
  }

 private:
  // A frame, then the chunks of the payload after the frame.
  std::optional<Span> next_of(const DataFile& file) {
    const manifest::Trailer& trailer = *file.trailer();
    const std::size_t part = part_++;
    if (part == 0) {
      const std::uint64_t begin = trailer.frame_begin(frame_);
      return Span{&file, begin, trailer.frame_end(frame_) - begin, trailer.frame_checksum(frame_), false, {}};
    }
    if (frame_ == trailer.item_count()) return std::nullopt;
    const std::span<const std::uint32_t> checksums = trailer.block_checksums(frame_);
    if (part > checksums.size()) return std::nullopt;
    const manifest::ItemRange& range = trailer.range(frame_);
    const std::uint64_t begin = (part - 1) * kChecksumBlockBytes;
    const std::uint64_t length = std::min(kChecksumBlockBytes, range.payload_length - begin);
    return Span{&file, range.payload_offset + begin, length, checksums[part - 1], false, {}};
  }

  const std::vector<const DataFile*>& files_;
  std::size_t file_ = 0;
  std::size_t frame_ = 0;
  std::size_t part_ = 0;  // 0: the frame; n: chunk n - 1 of the payload
};

// A source that counts the bytes read, up to the source's size, and that fails once the caller was interrupted: the
// check of a large archive then ends early. The wrapped source and the watch outlive the WatchedSource.
class WatchedSource final : public ByteSource {
 public:
  WatchedSource(const ByteSource& source, Watch& watch) : source_(source), watch_(watch) {}
  // Counts the bytes that were never read, too: the progress reaches its total.
  ~WatchedSource() override { count(source_.size()); }
  WatchedSource(const WatchedSource&) = delete;
  WatchedSource& operator=(const WatchedSource&) = delete;
  std::uint64_t size() const override { return source_.size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) const override {
    if (watch_.stop.is_set()) return Error(ErrorCode::kCancelled, "the check was interrupted");
    count(target.size());
    return source_.read_at(offset, target);
  }

 private:
  void count(std::uint64_t bytes) const {
    bytes = std::min(bytes, source_.size() - counted_);
    counted_ += bytes;
    watch_.bytes_done.fetch_add(bytes, std::memory_order_relaxed);
  }

  const ByteSource& source_;
  Watch& watch_;
  mutable std::uint64_t counted_ = 0;  // used by one thread
};

Error interrupted_error() { return {ErrorCode::kCancelled, "interrupted while the checkpoint was verified"}; }

class Verifier {
 public:
  Verifier(Checkpoint::Impl& impl, const VerifyOptions& options, VerifyReport& report, Watch& watch)
      : impl_(impl), options_(options), report_(report), watch_(watch), findings_(report) {}

  Result<void> open_files() {
    const Catalog& catalog = impl_.catalog;
    item_offsets_.resize(catalog.files.size());
    for (std::uint32_t index = 0; index < catalog.files.size(); ++index) {
      CAIRN_TRY(check_not_interrupted());
      auto file = impl_.file(index, options_.follow_links);
      files_.push_back(file ? *file : nullptr);
      if (!file) {
        findings_.add(std::move(file).error());
        continue;
      }
      ++report_.files;
      if ((*file)->state_file() != nullptr) add_torch_save(**file);
      // DataFile has verified header and trailer by their own checksums.
      findings_.count((*file)->checked_header_bytes(), 0);
      if (const auto& trailer = (*file)->trailer()) {
        findings_.count((*file)->bytes().size() - trailer->trailer_offset(), 0);
        watch_.bytes_total += trailer->trailer_offset();
      }
    }
    return {};
  }

  // Another checkpoint at the name of the metadata means that a save has replaced this one: no finding.
  Result<void> check_catalogs() {
    CAIRN_TRY(check_not_interrupted());
    if (!impl_.record) return {};
    std::vector<Error> problems =
        checkpointer::compare_catalogs(*impl_.storage, impl_.metadata_name, impl_.catalog, kProblemsMax);
    if (problems.empty() && impl_.damage()) problems.emplace_back(ErrorCode::kCorrupt, *impl_.damage());
    if (problems.empty() || impl_.replaced()) return {};
    for (Error& problem : problems) findings_.add(std::move(problem));
    return {};
  }

  Result<void> check_entries() {
    for (const CatalogTensor& tensor : impl_.catalog.tensors) {
      CAIRN_TRY(check_not_interrupted());
      check_tensor(tensor);
    }
    for (const CatalogValue& value : impl_.catalog.values) {
      CAIRN_TRY(check_not_interrupted());
      check_value(value);
    }
    if (!stale_.empty()) report_.warnings.push_back(checkpointer::stale_dtypes_warning(stale_));
    report_.tensors = impl_.catalog.tensors.size();
    report_.values = impl_.catalog.values.size();
    return check_items();
  }

  Result<void> check_bytes() {
    // A batch consists of adjacent spans in the order of the file.
    std::sort(safetensors_records_.begin(), safetensors_records_.end(), [](const auto& a, const auto& b) {
      if (a.file != b.file) return std::less<>()(a.file, b.file);
      return a.stored.record_offset < b.stored.record_offset;
    });
    for (const Span& span : spans_) watch_.bytes_total += span.length;
    for (const SafetensorsRecord& record : safetensors_records_) watch_.bytes_total += record.stored.record_bytes;
    return os::run_parallel(
        std::max<std::size_t>(options_.thread_count, 1), [this] { return watch_.stop.is_set(); },
        [this](std::size_t, os::StopFlag& stop) -> Result<void> {
          os::PageBuffer buffer(kBatchBytes + data_file::kFetchMarginBytes);
          while (!stop.is_set()) {
            const std::vector<Span> batch = take_batch();
            if (batch.empty()) break;
            check_batch(batch, buffer, stop);
          }
          return {};
        });
  }

 private:
  // Each item of a file of the save must have an entry in the metadata: a key that is missing there is lost.
  Result<void> check_items() {
    if (!impl_.record || impl_.catalog.format != CheckpointFormat::kDcp) return {};
    const std::unordered_set<std::string_view, SeededHash> named(impl_.catalog.files.begin(),
                                                                 impl_.catalog.files.end());
    for (const manifest::CommitRecord::File& file : impl_.record->files) {
      if (named.contains(file.name)) continue;
      findings_.add(Error(ErrorCode::kCorrupt, "the metadata names no item of the data file").file(file.name));
    }
    for (std::size_t number = 0; number < files_.size(); ++number) {
      CAIRN_TRY(check_not_interrupted());
      if (files_[number] == nullptr || !files_[number]->trailer()) continue;
      std::ranges::sort(item_offsets_[number]);
      const manifest::Trailer& trailer = *files_[number]->trailer();
      for (std::size_t i = 0; i < trailer.item_count(); ++i) {
        if (std::ranges::binary_search(item_offsets_[number], trailer.range(i).item_offset)) continue;
        findings_.add(Error(ErrorCode::kCorrupt, "the metadata lacks an item of the data file")
                          .key(trailer.item(i).fqn)
                          .file(files_[number]->name())
                          .offset(trailer.range(i).item_offset));
      }
    }
    return {};
  }

  Result<void> check_not_interrupted() const {
    if (!watch_.stop.is_set()) return {};
    return interrupted_error();
  }

  void check_tensor(const CatalogTensor& tensor) {
    note_if_transformed(tensor.fqn);
    for (std::size_t chunk = 0; chunk < tensor.chunk_count(); ++chunk) {
      const ItemLocation& location = tensor.locations[chunk];
      const DataFile* file = file_of(location, tensor.fqn);
      if (file == nullptr) continue;
      if (is_transformed(tensor.fqn)) {
        add_transformed_item(*file, location, tensor.fqn);
        continue;
      }
      // StateFile has checked shape and strides against the record; add_torch_save() has added the record.
      if (file->state_file() != nullptr) continue;
      auto stored = file->tensor(tensor, chunk);
      if (stored && impl_.catalog.format != CheckpointFormat::kDcp) {
        add_safetensors_record({file, *std::move(stored), tensor.fqn});
        continue;
      }
      if (stored && stored->dtype != tensor.dtype && (stale_.empty() || stale_.back() != tensor.fqn)) {
        stale_.push_back(tensor.fqn);
      }
      if (!stored && stored.error().code() != ErrorCode::kUnsupported) findings_.add(std::move(stored).error());
      add_stock_item(*file, location, tensor.fqn);
    }
    const auto whole = Box::whole(tensor.shape);
    if (!whole) {
      findings_.add(Error(whole.error()).key(tensor.fqn));
      return;
    }
    if (auto reads = plan::ChunkIndex(tensor).reads_for(*whole); !reads) findings_.add(std::move(reads).error());
  }

  void check_value(const CatalogValue& value) {
    note_if_transformed(value.fqn);
    const DataFile* file = file_of(value.location, value.fqn);
    if (file == nullptr) return;
    if (is_transformed(value.fqn)) return add_transformed_item(*file, value.location, value.fqn);
    if (!impl_.unread_keys.empty() || impl_.catalog.format == CheckpointFormat::kTorchCheckpointing) {
      return add_unrecorded(*file, value);
    }
    check_storages(*file, value);
    if (!file->trailer()) return add_stock_item(*file, value.location, value.fqn);
    if (auto checked = file->check_value(value); !checked) findings_.add(std::move(checked).error());
  }

  // The storages of the tensors inside a value: a checksum of the stored bytes does not show that one is missing.
  void check_storages(const DataFile& file, const CatalogValue& value) {
    if (impl_.catalog.format != CheckpointFormat::kDcp) return;  // add_torch_save() has looked at all storages
    const auto window = SourceWindow::make(file.bytes(), value.location.offset, value.location.length);
    const Result<void> checked = window ? torch_file::check_storages(*window) : Result<void>(window.error());
    if (checked) return;
    Error problem(checked.error().code(), checked.error().message());
    problem = std::move(problem)
                  .key(value.fqn)
                  .file(file.name())
                  .offset(value.location.offset + checked.error().offset().value_or(0));
    if (checked.error().expected()) problem = std::move(problem).expected(*checked.error().expected());
    if (checked.error().actual()) problem = std::move(problem).actual(*checked.error().actual());
    findings_.add(std::move(problem));
  }

  // Null if the item has no readable file. Adds a finding if the metadata names no bytes; open_files() has already
  // added a finding for each unreadable file.
  const DataFile* file_of(const ItemLocation& location, std::string_view fqn) {
    // A tensor without elements has no bytes in a safetensors file.
    const bool may_be_empty = impl_.catalog.format != CheckpointFormat::kDcp;
    if (location.length != 0 || may_be_empty) {
      item_offsets_[location.file].push_back(location.offset);
      return files_[location.file];
    }
    findings_.add(Error(ErrorCode::kCorrupt, "the metadata names no bytes for a key").key(fqn));
    return nullptr;
  }

  void add_stock_item(const DataFile& file, const ItemLocation& location, std::string_view fqn) {
    if (impl_.catalog.format == CheckpointFormat::kTorchSave) return;  // add_torch_save() has added all records
    if (!file.trailer()) spans_.push_back({&file, location.offset, location.length, 0, true, fqn});
  }

  // Of an archive every record may have a CRC; several keys may share a record. A legacy file has no checksums.
  void add_torch_save(const DataFile& file) {
    if (auto opens = torch_file::check_torch_opens(file.bytes()); !opens) {
      findings_.add(std::move(opens).error().file(file.name()));
    }
    for (Error& problem : file.state_file()->storage_problems(kProblemsMax)) {
      findings_.add(std::move(problem).file(file.name()));
    }
    std::uint64_t bytes_unchecked = file.bytes().size();
    for (const torch_file::StateFile::Record& record : file.state_file()->records()) {
      const zip::DirectoryEntry& place = *record.place;
      if (!place.crc) continue;
      spans_.push_back({&file, place.local_header_offset, place.size, *place.crc, false, record.fqn, &place});
      bytes_unchecked -= std::min(place.size, bytes_unchecked);  // records share no bytes
    }
    findings_.count(0, bytes_unchecked);
  }

  void add_safetensors_record(SafetensorsRecord record) {
    if (record.span_count() == 0) return findings_.count(0, record.stored.record_bytes);
    safetensors_records_.push_back(std::move(record));
  }

  // A value without a record: a tensor of a type without a DType; in a directory of torch_checkpointing any value.
  // Files of JSON and raw bytes have no checksums.
  void add_unrecorded(const DataFile& file, const CatalogValue& value) {
    if (const Result<void> read = impl_.check_read(value.fqn); !read)
      report_.warnings.emplace_back(read.error().what());
    if (impl_.catalog.format == CheckpointFormat::kSafetensors) return findings_.count(0, value.location.length);
    if (file.state_file() == nullptr && unchecked_files_.insert(&file).second) findings_.count(0, file.bytes().size());
  }

  bool is_transformed(const std::string& fqn) const { return impl_.catalog.transforms.contains(fqn); }

  void note_if_transformed(const std::string& fqn) {
    const auto found = impl_.catalog.transforms.find(fqn);
    if (found != impl_.catalog.transforms.end()) report_.unchecked_keys.emplace_back(fqn, found->second);
  }

  // Cairn can't undo a transform, and the stored bytes of a transformed item have no checksum in the metadata.
  // Therefore only the item's range is checked. If the file has Cairn's trailer, SpanWalk checks the stored bytes by
  // the trailer's checksums.
  void add_transformed_item(const DataFile& file, const ItemLocation& location, std::string_view fqn) {
    const std::uint64_t size = file.bytes().size();
    if (location.offset > size || location.length > size - location.offset) {
      findings_.add(Error(ErrorCode::kCorrupt, "the data file ends before an item does")
                        .key(fqn)
                        .file(file.name())
                        .offset(location.offset)
                        .expected(std::to_string(location.length) + " bytes from there")
                        .actual("a file of " + std::to_string(size) + " bytes"));
      return;
    }
    if (!file.trailer()) findings_.count(0, location.length);
  }

  // Adjacent spans of one file that fit in one read; a larger span, an archive or a record of an archive is a batch
  // alone.
  std::vector<Span> take_batch() {
    const std::lock_guard lock(mutex_);
    std::vector<Span> batch;
    std::uint64_t bytes = 0;
    if (!next_) next_ = next_span();
    for (; next_; next_ = next_span()) {
      const Span& first = batch.empty() ? *next_ : batch.front();
      const bool alone = next_->is_archive || next_->record != nullptr || next_->length > kBatchBytes - bytes;
      if (!batch.empty() && (alone || next_->file != first.file)) break;
      batch.push_back(*next_);
      bytes += next_->length;
      if (!alone) continue;
      next_.reset();
      break;
    }
    return batch;
  }

  std::optional<Span> next_span() {
    if (auto span = walk_.next()) return span;
    while (next_record_ < safetensors_records_.size()) {
      const SafetensorsRecord& record = safetensors_records_[next_record_];
      if (next_record_span_ < record.span_count()) return record.span(next_record_span_++);
      ++next_record_;
      next_record_span_ = 0;
    }
    return next_of_spans_ < spans_.size() ? std::optional(spans_[next_of_spans_++]) : std::nullopt;
  }

  void check_batch(std::span<const Span> batch, os::PageBuffer& buffer, const os::StopFlag& stop) {
    const Span& first = batch.front();
    if (first.is_archive) return check_archive_span(first);
    if (first.record != nullptr) return check_record_span(first, buffer, stop);
    if (first.length > kBatchBytes) return check_large_span(first, buffer, stop);
    const storage::ReadableFile& file = first.file->bytes();
    const std::uint64_t length = batch.back().begin + batch.back().length - first.begin;
    const bool cached = data_file::better_from_cache(file, first.begin, length, true);
    auto bytes = data_file::fetch_range(file, first.begin, length, cached, buffer);
    watch_.bytes_done += length;
    if (!bytes) return findings_.add(std::move(bytes).error().file(first.file->name()).offset(first.begin));
    for (const Span& span : batch) compare(span, crc32(bytes->subspan(span.begin - first.begin, span.length)));
  }

  static Error located(Error error, const Span& span) {
    error = std::move(error).file(span.file->name());
    return span.key.empty() ? error : std::move(error).key(span.key);
  }

  void check_large_span(const Span& span, os::PageBuffer& buffer, const os::StopFlag& stop) {
    const storage::ReadableFile& file = span.file->bytes();
    std::uint32_t crc = 0;
    for (std::uint64_t done = 0; done < span.length;) {
      if (stop.is_set()) return;
      const std::uint64_t begin = span.begin + done;
      const std::uint64_t length = std::min(kBatchBytes, span.length - done);
      const bool cached = data_file::better_from_cache(file, begin, length, true);
      auto piece = data_file::fetch_range(file, begin, length, cached, buffer);
      if (!piece) return findings_.add(located(std::move(piece).error().offset(begin), span));
      crc = crc32(*piece, crc);
      done += length;
      watch_.bytes_done += length;
    }
    compare(span, crc);
  }

  void check_record_span(Span span, os::PageBuffer& buffer, const os::StopFlag& stop) {
    auto begin = zip::payload_offset(span.file->bytes(), *span.record);
    if (!begin) {
      watch_.bytes_done += span.length;
      return findings_.add(located(std::move(begin).error(), span));
    }
    span.begin = *begin;
    check_large_span(span, buffer, stop);
  }

  void check_archive_span(const Span& span) {
    const auto explain = [&](Error error) {
      const std::uint64_t inside = error.offset().value_or(0);
      Error located(error.code(), error.message());
      return std::move(located)
          .key(span.key)
          .file(span.file->name())
          .offset(span.begin + inside)
          .expected(error.expected().value_or("an intact archive"))
          .actual(error.actual().value_or("a damaged one"));
    };
    const auto window = SourceWindow::make(span.file->bytes(), span.begin, span.length);
    if (!window) return findings_.add(explain(window.error()));
    const WatchedSource archive(*window, watch_);
    const auto coverage = data_file::check_archive(archive);
    if (!coverage) return findings_.add(explain(coverage.error()));
    if (const auto opens = torch_file::check_torch_opens(archive); !opens) findings_.add(explain(opens.error()));
    findings_.count(coverage->bytes_checked, coverage->bytes_unchecked);
  }

  // The key of the item whose payload has the byte at `offset`.
  static std::optional<std::string> key_at(const manifest::Trailer& trailer, std::uint64_t offset) {
    std::size_t begin = 0;
    std::size_t end = trailer.item_count();
    while (begin != end) {
      const std::size_t middle = begin + (end - begin) / 2;
      const manifest::ItemRange& range = trailer.range(middle);
      if (range.payload_offset + range.payload_length <= offset) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    const bool is_inside = begin != trailer.item_count() && trailer.range(begin).payload_offset <= offset;
    return is_inside ? std::optional(trailer.item(begin).fqn) : std::nullopt;
  }

  void compare(const Span& span, std::uint32_t crc) {
    findings_.count(span.length, 0);
    if (crc == span.crc) return;
    Error problem(ErrorCode::kCorrupt, span.record == nullptr
                                           ? "a checksum differs"
                                           : "the checksum of record '" + span.record->name + "' differs");
    if (!span.key.empty()) problem = std::move(problem).key(span.key);
    if (span.file->trailer()) {
      if (const std::optional<std::string> key = key_at(*span.file->trailer(), span.begin)) {
        problem = std::move(problem).key(*key);
      }
    }
    findings_.add(std::move(problem)
                      .file(span.file->name())
                      .offset(span.begin)
                      .expected(crc_text(span.crc))
                      .actual(crc_text(crc)));
  }

  Checkpoint::Impl& impl_;
  const VerifyOptions& options_;
  VerifyReport& report_;
  Watch& watch_;
  Findings findings_;
  std::vector<const DataFile*> files_;
  std::vector<std::vector<std::uint64_t>> item_offsets_;  // by file: of the metadata's entries
  std::vector<Span> spans_;                               // archives of stock files, and records of torch.save files
  std::vector<SafetensorsRecord> safetensors_records_;
  std::unordered_set<const DataFile*> unchecked_files_;  // JSON and raw items
  std::vector<std::string> stale_;  // keys of tensors with another dtype in a file than in the metadata
  std::mutex mutex_;                // guards the members below
  SpanWalk walk_{files_};
  std::optional<Span> next_;
  std::size_t next_of_spans_ = 0;
  std::size_t next_record_ = 0;  // of safetensors_records_
  std::size_t next_record_span_ = 0;
};

// Runs on the verifying thread, and calls neither function of `options`.
Result<VerifyReport> verify_watched(const std::filesystem::path& directory, const VerifyOptions& options,
                                    Watch& watch) {
  CAIRN_TRY_ASSIGN(const Checkpoint checkpoint,
                   checkpointer::open_with(checkpointer::watched_directories(watch.operations), directory));
  VerifyReport report;
  report.format = checkpoint.catalog().format;
  report.has_commit_record = checkpoint.save_id().has_value();
  report.warnings = checkpoint.impl().warnings;
  if (const auto notes = checkpoint.notes(); !notes && !checkpoint.damage()) report.problems.push_back(notes.error());
  Verifier verifier(checkpoint.impl(), options, report, watch);
  CAIRN_TRY(verifier.open_files());
  CAIRN_TRY(verifier.check_catalogs());
  for (Error& problem : checkpointer::compare_recorded_files(*checkpoint.impl().storage)) {
    report.problems.push_back(std::move(problem));
  }
  CAIRN_TRY(verifier.check_entries());
  CAIRN_TRY(verifier.check_bytes());
  return report;
}

}  // namespace

Result<VerifyReport> verify(const std::filesystem::path& directory, const VerifyOptions& options) {
  VerifyOptions copied = options;
  copied.interrupted = {};
  copied.progress = {};
  std::function<void(std::uint64_t, std::uint64_t)> progress;
  if (options.progress) {
    progress = [&options](std::uint64_t done, std::uint64_t total) { options.progress({done, total}); };
  }
  events::Operation events = events::Operation::begin(EventOperation::kVerify, {directory.native()});
  progress = events.work().setter(std::move(progress));
  Result<VerifyReport> report =
      storage::watched_call({options.interrupted, std::move(progress), interrupted_error(), options.deadlines},
                            [directory, copied](Watch& watch) { return verify_watched(directory, copied, watch); });
  if (!report) {
    events.fail(report.error());
  } else {
    const auto& problems = report->problems;
    events.end(EventKind::kVerified, report->bytes_checked,
               problems.empty() ? std::nullopt : std::optional(problems.front()));
    events::add_trace_problem(report->warnings);
  }
  return report;
}

}  // namespace cairn
