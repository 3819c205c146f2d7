#include "data_file/image_writer.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>
#include <mutex>
#include <optional>

#include "core/attempt.h"
#include "core/checked.h"
#include "core/checksum.h"
#include "data_file/image_composer.h"
#include "os/page_buffer.h"
#include "os/parallel.h"

namespace cairn::data_file {
namespace {

// Large enough to keep a device busy with a few segments in flight, small enough for a few segments to take little
// memory.
constexpr std::uint64_t kSegmentBytes = 4 * 1024 * 1024;
// Of a file that is composed in buffers, whose storage prefers larger segments.
constexpr std::uint64_t kBufferedSegmentBytesMax = 16 * 1024 * 1024;
// To a storage behind a network, from staged memory: each request waits, and takes no memory.
constexpr std::size_t kRequestsInFlight = 16;

std::uint64_t segment_bytes_of(const storage::Storage& storage, const ImageFile& file) {
  const std::uint64_t preferred = storage.preferred_write_bytes(file.image->file_bytes());
  const bool fits = !file.staged.empty() || preferred <= kBufferedSegmentBytesMax;
  return preferred != 0 && fits ? preferred : kSegmentBytes;
}

// The state of a file being written. The thread that takes the first segment creates the file; the thread that writes
// the last segment finishes the file.
class FileJob {
 public:
  FileJob(const ImageFile& file, std::uint64_t segment_bytes)
      : file_(file),
        segment_bytes_(segment_bytes),
        segment_count_((file.image->file_bytes() + segment_bytes - 1) / segment_bytes) {}

  std::uint64_t segment_count() const { return segment_count_; }
  // A segment, followed by the rest of a checksum block.
  std::uint64_t buffer_bytes() const { return file_.staged.empty() ? segment_bytes_ + kChecksumBlockBytes : 0; }

  Result<void> write_segment(storage::Storage& storage, std::uint64_t segment, os::PageBuffer& buffer,
                             const WriteOptions& options) {
    CAIRN_TRY(open(storage, options));
    const std::uint64_t begin = composer_->segment_begin(segment);
    const std::uint64_t length = composer_->segment_length(segment);
    // Pads the file's tail to the file's write alignment. finish() truncates the padding.
    const std::uint64_t padded = align_up(length, file_out_->write_alignment());
    const std::span<std::byte> bytes =
        file_.staged.empty() ? buffer.span().first(padded) : file_.staged.subspan(begin, padded);
    if (file_.await_staged) {
      if (Result<void> there = attempt([&] { return file_.await_staged(begin + length); }); !there) {
        composer_->abandon();  // other threads may be inside compose() and wait for this segment
        return there;
      }
    }
    if (file_.fill) {
      if (Result<void> filled = attempt([&] { return fill(segment, buffer.span()); }); !filled) {
        composer_->abandon();
        return filled;
      }
    }
    CAIRN_TRY(compose(segment, bytes.first(length), options.sources));
    std::memset(bytes.data() + length, 0, padded - length);
    CAIRN_TRY(file_out_->write_at(begin, bytes));
    if (options.bytes_written != nullptr) options.bytes_written->fetch_add(length, std::memory_order_relaxed);
    if (segments_written_.fetch_add(1) + 1 != segment_count_) return {};
    CAIRN_TRY(revise(buffer));
    CAIRN_TRY(file_out_->finish(file_.image->file_bytes(), options.durability));
    take_checksums();
    file_out_.reset();
    composer_.reset();
    return {};
  }

  // Of a file without bytes, which has no segment.
  Result<void> write_empty(storage::Storage& storage, const WriteOptions& options) {
    CAIRN_TRY(create(storage, options));
    CAIRN_TRY(file_out_->finish(0, options.durability));
    file_out_.reset();
    composer_.reset();
    return {};
  }

  std::uint32_t trailer_checksum() const { return trailer_checksum_; }

 private:
  Result<void> open(storage::Storage& storage, const WriteOptions& options) {
    const std::lock_guard lock(opening_);
    if (failure_) return *failure_;
    if (file_out_) return {};
    // Also after an exception no other thread creates the file: the segment of this thread will never be composed, and
    // threads with later segments would wait for the segment.
    Result<void> created = attempt([&] { return create(storage, options); });
    if (!created) failure_ = created.error();
    return created;
  }

  Result<void> create(storage::Storage& storage, const WriteOptions& options) {
    // Direct I/O gives a file of a few pages no advantage.
    const bool is_large = file_.image->file_bytes() >= segment_bytes_;
    CAIRN_TRY_ASSIGN(std::unique_ptr<storage::WritableFile> created,
                     storage.create(file_.name, {.size = file_.image->file_bytes(),
                                                 .direct_io = is_large && options.direct_io,
                                                 .write_back = is_large && options.durability == Durability::kDurable,
                                                 .rewritten_bytes = file_.image->revised_bytes()}));
    composer_.emplace(*file_.image, segment_bytes_);
    file_out_ = std::move(created);
    return {};
  }

  // Fills in the absent payloads of the segment, which lies at the begin of `buffer`.
  Result<void> fill(std::uint64_t segment, std::span<std::byte> buffer) {
    const Image& image = *file_.image;
    const std::uint64_t begin = composer_->segment_begin(segment);
    const std::uint64_t segment_end = begin + composer_->segment_length(segment);
    const std::uint64_t end = begin + composer_->filled_length(segment);
    std::vector<PayloadPart> parts;
    for (std::size_t payload = image.first_payload_beyond(begin); payload < image.payload_count(); ++payload) {
      const std::uint64_t from = std::max(begin, image.payload_begin(payload));
      if (from >= end) break;
      if (!image.is_absent(payload)) continue;
      const std::uint64_t to = std::min(end, image.payload_end(payload));
      const std::uint64_t cut = std::clamp(segment_end, from, to);
      const auto add = [&](std::uint64_t part_begin, std::uint64_t part_end, bool is_ahead) {
        if (part_begin == part_end) return;
        const std::span<std::byte> out = buffer.subspan(part_begin - begin, part_end - part_begin);
        parts.push_back({payload, part_begin - image.payload_begin(payload), out, is_ahead});
      };
      add(from, cut, false);
      add(cut, to, true);
    }
    if (parts.empty()) return {};
    return file_.fill(parts);
  }

  // Writes the image's revised bytes, now that all checksums are known. `buffer` serves if it is large enough.
  Result<void> revise(os::PageBuffer& buffer) {
    const std::uint64_t bytes = file_.image->revised_bytes();
    if (bytes == 0) return {};
    assert(bytes % file_out_->write_alignment() == 0);
    std::optional<os::PageBuffer> larger;
    if (bytes > buffer.size()) larger.emplace(bytes);
    const std::span<std::byte> revised = (larger ? *larger : buffer).span().first(bytes);
    composer_->revise(revised);
    return file_out_->write_at(0, revised);
  }

  void take_checksums() {
    trailer_checksum_ = composer_->trailer_checksum();
    if (file_.payload_crcs == nullptr) return;
    file_.payload_crcs->resize(file_.image->payload_count());
    for (std::size_t i = 0; i < file_.payload_crcs->size(); ++i) (*file_.payload_crcs)[i] = composer_->payload_crc(i);
  }

  Result<void> compose(std::uint64_t segment, std::span<std::byte> bytes, os::Gate* sources) {
    const os::Gate::Pass pass(sources);
    if (pass.is_granted()) {
      composer_->compose(segment, bytes);
      return {};
    }
    composer_->abandon();  // threads inside compose() may be waiting for this segment
    return Error(ErrorCode::kCancelled, "the save was given up before its bytes were copied").file(file_.name);
  }

  const ImageFile& file_;
  std::uint64_t segment_bytes_;
  std::uint64_t segment_count_;
  std::mutex opening_;
  std::optional<Error> failure_;
  std::unique_ptr<storage::WritableFile> file_out_;
  std::optional<ImageComposer> composer_;
  std::atomic<std::uint64_t> segments_written_{0};
  std::uint32_t trailer_checksum_ = 0;
};

// Hands out (file, segment) pairs in ascending order, as ImageComposer requires.
class SegmentQueue {
 public:
  explicit SegmentQueue(std::vector<std::unique_ptr<FileJob>>& jobs) : jobs_(jobs) {}

  struct Segment {
    FileJob* job;
    std::uint64_t index;
  };
  std::optional<Segment> take() {
    const std::lock_guard lock(mutex_);
    while (file_ < jobs_.size() && segment_ == jobs_[file_]->segment_count()) {
      ++file_;
      segment_ = 0;
    }
    if (file_ == jobs_.size()) return std::nullopt;
    return Segment{jobs_[file_].get(), segment_++};
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<FileJob>>& jobs_;
  std::size_t file_ = 0;
  std::uint64_t segment_ = 0;
};

}  // namespace

Result<std::vector<std::uint32_t>> write_images(storage::Storage& storage, const std::vector<ImageFile>& files,
                                                const WriteOptions& options) {
  std::vector<std::unique_ptr<FileJob>> jobs;
  std::uint64_t segment_count = 0;
  std::uint64_t buffer_bytes = 0;
  for (const ImageFile& file : files) {
    jobs.push_back(std::make_unique<FileJob>(file, segment_bytes_of(storage, file)));
    buffer_bytes = std::max(buffer_bytes, jobs.back()->buffer_bytes());
    segment_count += jobs.back()->segment_count();
    if (jobs.back()->segment_count() == 0) CAIRN_TRY(jobs.back()->write_empty(storage, options));
  }
  SegmentQueue queue(jobs);
  const bool is_remote = !files.empty() && storage.preferred_write_bytes(files[0].image->file_bytes()) != 0;
  const bool waits_for_network = is_remote && buffer_bytes == 0;
  const std::size_t wanted =
      waits_for_network ? std::max(options.thread_count, kRequestsInFlight) : options.thread_count;
  const std::size_t threads = std::clamp<std::uint64_t>(wanted, 1, std::max<std::uint64_t>(segment_count, 1));
  const auto write_segments = [&](std::size_t, os::StopFlag& stop) -> Result<void> {
    os::PageBuffer buffer(buffer_bytes);
    while (!stop.is_set()) {
      const std::optional<SegmentQueue::Segment> segment = queue.take();
      if (!segment) break;
      CAIRN_TRY(segment->job->write_segment(storage, segment->index, buffer, options));
    }
    return {};
  };
  CAIRN_TRY(os::run_parallel(threads, options.interrupted, write_segments));
  std::vector<std::uint32_t> checksums;
  checksums.reserve(jobs.size());
  for (const auto& job : jobs) checksums.push_back(job->trailer_checksum());
  return checksums;
}

}  // namespace cairn::data_file
