#include "storage/bucket/bucket_writable_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "os/page_buffer.h"
#include "storage/bucket/part_size.h"

namespace cairn::storage {
namespace {

class BucketWritableFile final : public WritableFile {
 public:
  BucketWritableFile(BucketPlace place, std::string_view name, const CreateOptions& options)
      : place_(std::move(place)),
        name_(name),
        key_(place_.key_of(name)),
        size_(options.size),
        part_bytes_(part_bytes_of(options.size)),
        held_bytes_(options.size <= part_bytes_ ? part_bytes_ : options.rewritten_bytes) {}
  ~BucketWritableFile() override {
    // (4) A failure leaves an upload that the clean-up of a later save finds.
    if (upload_id_ && !is_complete_) (void)place_.unstopped->abort_upload(key_, *upload_id_);
  }
  BucketWritableFile(const BucketWritableFile&) = delete;
  BucketWritableFile& operator=(const BucketWritableFile&) = delete;

  bool is_multipart() const { return size_ > part_bytes_; }

  Result<void> begin() {
    const std::lock_guard lock(mutex_);
    if (upload_id_) return {};
    Result<std::string> id = place_.store->begin_upload(key_);
    if (!id) return explain(id.error());
    upload_id_ = *std::move(id);
    return {};
  }

  std::size_t write_alignment() const override { return 1; }

  Result<void> write_at(std::uint64_t offset, std::span<const std::byte> data) override {
    while (!data.empty()) {
      const std::uint64_t part = offset / part_bytes_;
      const std::uint64_t within = offset % part_bytes_;
      if (part >= ObjectStore::kPartCountMax) {
        return Error(ErrorCode::kUnsupported, "the file is too large for the parts chosen by its first size")
            .file(name_)
            .offset(offset);
      }
      const std::span<const std::byte> piece = data.first(std::min<std::uint64_t>(part_bytes_ - within, data.size()));
      const bool is_whole = within == 0 && piece.size() == length_of(part);
      CAIRN_TRY(is_whole && !is_held(part) ? send_whole(part, piece) : collect(part, within, piece));
      data = data.subspan(piece.size());
      offset += piece.size();
    }
    return {};
  }

  Result<void> finish(std::uint64_t size, Durability /*durability*/) override {
    if (!upload_id_ && size <= part_bytes_) return finish_whole(size);
    CAIRN_TRY(begin());
    std::vector<UploadedPart> parts;
    for (std::uint64_t begin = 0; begin < size; begin += part_bytes_) {
      const std::uint64_t part = begin / part_bytes_;
      const std::uint64_t length = std::min(part_bytes_, size - begin);
      Part& state = parts_[part];
      if (!state.sent) {
        if (state.filled < length) return unwritten(begin);
        CAIRN_TRY(send(part, state.buffer->span().first(length)));
        state.buffer.reset();
      }
      if (state.sent_bytes != length) return unwritten(begin);
      parts.push_back(*state.sent);
    }
    const Result<ObjectVersion> done = place_.store->complete_upload(key_, *upload_id_, parts, size);
    if (!done) return explain(done.error());
    is_complete_ = true;
    return {};
  }

 private:
  struct Part {
    std::optional<os::PageBuffer> buffer = {};  // whole, once a byte is there
    std::uint64_t filled = 0;                   // bytes in the buffer
    bool is_taken = false;                      // a thread sends the part, or has sent it
    std::optional<UploadedPart> sent = {};
    std::uint64_t sent_bytes = 0;
  };

  Error explain(const Error& error) const { return place_.explain(error, name_, "writing an object"); }

  Error unwritten(std::uint64_t offset) const {
    return Error(ErrorCode::kInternal, "a part of the file was not written whole").file(name_).offset(offset);
  }

  // The bytes of the part, as far as they are known before finish().
  std::uint64_t length_of(std::uint64_t part) const {
    const std::uint64_t begin = part * part_bytes_;
    return size_ > begin ? std::min(part_bytes_, size_ - begin) : part_bytes_;
  }

  bool is_held(std::uint64_t part) const { return part * part_bytes_ < held_bytes_; }

  // (2) The caller's memory is the part.
  Result<void> send_whole(std::uint64_t part, std::span<const std::byte> bytes) {
    {
      const std::lock_guard lock(mutex_);
      Part& state = parts_[part];
      if (state.is_taken || state.buffer) return rewritten(part);
      state.is_taken = true;
    }
    return send(part, bytes);
  }

  // (2) Copies the bytes; sends the part if the part is complete.
  Result<void> collect(std::uint64_t part, std::uint64_t within, std::span<const std::byte> bytes) {
    Part* state = nullptr;
    {
      const std::lock_guard lock(mutex_);
      state = &parts_[part];  // of a map: other parts do not move it
      if (state->is_taken) return rewritten(part);
      if (!state->buffer) state->buffer.emplace(buffer_bytes(part, within + bytes.size()));
      if (within + bytes.size() > state->buffer->size()) return beyond(part * part_bytes_ + within);
    }
    std::memcpy(state->buffer->data() + within, bytes.data(), bytes.size());
    {
      const std::lock_guard lock(mutex_);
      state->filled += bytes.size();
      // A write behind the stated size: finish() knows the length of the part.
      if (is_held(part) || state->filled != length_of(part)) return {};
      state->is_taken = true;
    }
    CAIRN_TRY(send(part, state->buffer->span().first(length_of(part))));
    state->buffer.reset();
    return {};
  }

  // A small file of a known size takes no more than its size, rounded up to pages, and the bytes behind its end that a
  // caller aligns.
  std::uint64_t buffer_bytes(std::uint64_t part, std::uint64_t end) const {
    return size_ == 0 ? part_bytes_ : std::max(align_up(length_of(part), os::kPageBytes), end);
  }

  Result<void> send(std::uint64_t part, std::span<const std::byte> bytes) {
    CAIRN_TRY(begin());
    const std::array<std::span<const std::byte>, 1> pieces{bytes};
    const Result<UploadedPart> sent =
        place_.store->upload_part(key_, *upload_id_, static_cast<std::uint32_t>(part + 1), pieces);
    if (!sent) return explain(sent.error()).offset(part * part_bytes_);
    const std::lock_guard lock(mutex_);
    parts_[part].sent = *sent;
    parts_[part].sent_bytes = bytes.size();
    return {};
  }

  // (1)
  Result<void> finish_whole(std::uint64_t size) {
    Part& only = parts_[0];
    if (only.filled < size) return unwritten(0);
    const std::span<const std::byte> bytes =
        only.buffer ? std::span<const std::byte>(only.buffer->span().first(size)) : std::span<const std::byte>();
    CAIRN_TRY(create_object(place_, name_, bytes));
    is_complete_ = true;
    return {};
  }

  Error rewritten(std::uint64_t part) const {
    return Error(ErrorCode::kInternal, "a part of the file was written a second time")
        .file(name_)
        .offset(part * part_bytes_);
  }

  Error beyond(std::uint64_t offset) const {
    return Error(ErrorCode::kInternal, "a write behind the stated size of the file").file(name_).offset(offset);
  }

  BucketPlace place_;
  std::string name_;
  std::string key_;
  std::uint64_t size_;  // as stated at the creation; 0: unknown
  std::uint64_t part_bytes_;
  std::uint64_t held_bytes_;  // parts that begin before are kept until finish()
  std::mutex mutex_;
  std::optional<std::string> upload_id_;
  std::map<std::uint64_t, Part> parts_;
  bool is_complete_ = false;
};

}  // namespace

Result<std::unique_ptr<WritableFile>> create_bucket_file(const BucketPlace& place, std::string_view name,
                                                         const CreateOptions& options) {
  auto file = std::make_unique<BucketWritableFile>(place, name, options);
  if (file->is_multipart()) {
    const Result<ObjectVersion> old = place.store->describe(place.key_of(name));
    if (old) return name_is_taken(place, name);
    if (old.error().code() != ErrorCode::kNotFound) return place.explain(old.error(), name, "creating an object");
    CAIRN_TRY(file->begin());
  }
  return std::unique_ptr<WritableFile>(std::move(file));
}

}  // namespace cairn::storage
