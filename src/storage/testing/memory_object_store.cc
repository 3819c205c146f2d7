#include "storage/testing/memory_object_store.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/checksum.h"

namespace cairn::storage {
namespace {

Error missing_object(std::string_view key, std::string_view what = "no such object") {
  return Error(ErrorCode::kNotFound, std::string(what)).error_number(ENOENT).file(key);
}

Error no_answer(std::string_view key) {
  return Error(ErrorCode::kUnavailable, "the store did not answer in time").file(key);
}

Error refused_upload(std::string_view key, std::string_view why) {
  return Error(ErrorCode::kUnavailable, "the store refused the upload: " + std::string(why)).file(key);
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

bool MemoryObjectStore::changes(Call call) {
  switch (call) {
    case Call::kDescribe:
    case Call::kRead:
    case Call::kReadWhole:
    case Call::kPendingUploads:
    case Call::kUploadedParts:
    case Call::kList:
    case Call::kNow: return false;
    default: return true;
  }
}

std::uint64_t MemoryObjectStore::call_count(Call call) const {
  const Lock lock(mutex_);
  return counts_[static_cast<std::size_t>(call)];
}

std::uint64_t MemoryObjectStore::call_count() const {
  const Lock lock(mutex_);
  std::uint64_t sum = 0;
  for (const std::uint64_t count : counts_) sum += count;
  return sum;
}

std::uint64_t MemoryObjectStore::change_count() const {
  const Lock lock(mutex_);
  return changes_;
}

void MemoryObjectStore::set_fault(Call call, std::uint64_t number, Fault fault) {
  const Lock lock(mutex_);
  faults_.insert_or_assign({call, number}, fault);
}

void MemoryObjectStore::set_fault_of_change(std::uint64_t number, Fault fault) {
  const Lock lock(mutex_);
  change_faults_.insert_or_assign(number, fault);
}

void MemoryObjectStore::crash_at(std::uint64_t number) {
  const Lock lock(mutex_);
  crash_at_ = number;
}

void MemoryObjectStore::outlive_crash() {
  const Lock lock(mutex_);
  crash_at_.reset();
  crashed_ = false;
}

bool MemoryObjectStore::fault_fired() const {
  const Lock lock(mutex_);
  return fired_;
}

void MemoryObjectStore::land_late_calls() {
  const Lock lock(mutex_);
  for (const auto& act : std::exchange(late_, {})) act();
}

void MemoryObjectStore::set_before_call(std::function<void(Call call, std::string_view key)> before) {
  const Lock lock(mutex_);
  before_ = std::move(before);
}

void MemoryObjectStore::ignore_conditions() {
  const Lock lock(mutex_);
  ignores_conditions_ = true;
}

void MemoryObjectStore::set_page(std::uint32_t count) {
  const Lock lock(mutex_);
  page_ = count;
}

void MemoryObjectStore::set_clock(double seconds) {
  const Lock lock(mutex_);
  clock_ = seconds;
}

void MemoryObjectStore::advance_clock(double seconds) {
  const Lock lock(mutex_);
  clock_ += seconds;
}

std::map<std::string, std::string> MemoryObjectStore::contents() const {
  const Lock lock(mutex_);
  std::map<std::string, std::string> contents;
  for (const auto& [key, object] : objects_) contents.emplace(key, object.bytes);
  return contents;
}

void MemoryObjectStore::put(const std::string& key, std::string bytes) {
  const Lock lock(mutex_);
  put_locked(key, std::move(bytes));
}

void MemoryObjectStore::drop(const std::string& key) {
  const Lock lock(mutex_);
  objects_.erase(key);
}

std::size_t MemoryObjectStore::upload_count() const {
  const Lock lock(mutex_);
  return uploads_.size();
}

void MemoryObjectStore::become(const MemoryObjectStore& other) {
  const std::scoped_lock lock(mutex_, other.mutex_);
  objects_ = other.objects_;
  uploads_ = other.uploads_;
  tags_ = other.tags_;
  uploads_begun_ = other.uploads_begun_;
  clock_ = other.clock_;
  page_ = other.page_;
  ignores_conditions_ = other.ignores_conditions_;
  counts_ = {};
  changes_ = 0;
  faults_.clear();
  change_faults_.clear();
  crash_at_.reset();
  crashed_ = false;
  fired_ = false;
  late_.clear();
}

Result<std::optional<MemoryObjectStore::Fault>> MemoryObjectStore::begin(Call call, std::string_view key) {
  std::function<void(Call, std::string_view)> before;
  {
    const Lock lock(mutex_);
    before = before_;
  }
  if (before) before(call, key);
  const Lock lock(mutex_);
  const std::uint64_t number = counts_[static_cast<std::size_t>(call)]++;
  const auto of_kind = faults_.find({call, number});
  std::optional<Fault> fault;
  if (of_kind != faults_.end()) fault = of_kind->second;
  if (changes(call)) {
    const std::uint64_t change = changes_++;
    if (const auto of_change = change_faults_.find(change); of_change != change_faults_.end()) {
      fault = of_change->second;
    }
    if (crash_at_ && change >= *crash_at_) crashed_ = true;
  }
  if (crashed_ || fault) fired_ = true;
  if (crashed_) return Error(ErrorCode::kUnavailable, "the process was killed").file(key);
  if (fault == Fault::kFails) return no_answer(key);
  return fault;
}

template <typename T>
Result<T> MemoryObjectStore::carry_out(Call call, std::string_view key, std::function<Result<T>()> act) {
  CAIRN_TRY_ASSIGN(const std::optional<Fault> fault, begin(call, key));
  const Lock lock(mutex_);
  if (!fault) return act();
  switch (*fault) {
    case Fault::kLostAnswer: (void)act(); return act();
    case Fault::kUnknownDone: (void)act(); return no_answer(key);
    case Fault::kUnknownLate: late_.emplace_back([act = std::move(act)] { (void)act(); }); return no_answer(key);
    default: return no_answer(key);
  }
}

Result<WriteOutcome> MemoryObjectStore::carry_out_condition(Call call, std::string_view key,
                                                            std::function<Result<WriteOutcome>()> act) {
  CAIRN_TRY_ASSIGN(const std::optional<Fault> fault, begin(call, key));
  const Lock lock(mutex_);
  if (!fault) return act();
  WriteOutcome unknown{WriteOutcome::Kind::kUnknown, {}, true, no_answer(key)};
  switch (*fault) {
    case Fault::kLostAnswer: {
      (void)act();
      Result<WriteOutcome> again = act();
      if (again) again->answer_was_lost = true;
      return again;
    }
    case Fault::kUnknownDone: (void)act(); return unknown;
    case Fault::kUnknownLate: late_.emplace_back([act = std::move(act)] { (void)act(); }); return unknown;
    default: return unknown;
  }
}

double MemoryObjectStore::seconds() const { return std::floor(clock_); }

std::string MemoryObjectStore::new_tag() { return "\"tag-" + std::to_string(++tags_) + "\""; }

ObjectVersion MemoryObjectStore::put_locked(const std::string& key, std::string bytes) {
  ObjectVersion version{new_tag(), bytes.size(), seconds()};
  objects_.insert_or_assign(key, Object{std::move(bytes), version});
  return version;
}

bool MemoryObjectStore::holds(std::string_view key, const WriteCondition& condition) const {
  const auto found = objects_.find(key);
  switch (condition.kind) {
    case WriteCondition::Kind::kAbsent: return ignores_conditions_ || found == objects_.end();
    case WriteCondition::Kind::kTag:
      assert(!condition.tag.empty());
      return ignores_conditions_ || (found != objects_.end() && found->second.version.tag == condition.tag);
    default: return true;
  }
}

Result<ObjectVersion> MemoryObjectStore::describe(std::string_view key) {
  return carry_out<ObjectVersion>(Call::kDescribe, key, [this, key = std::string(key)]() -> Result<ObjectVersion> {
    const auto found = objects_.find(key);
    if (found == objects_.end()) return missing_object(key);
    return found->second.version;
  });
}

Result<ObjectVersion> MemoryObjectStore::read(std::string_view key, std::uint64_t offset, std::span<std::byte> target,
                                              std::string_view tag) {
  CAIRN_TRY(begin(Call::kRead, key));
  const Lock lock(mutex_);
  const auto found = objects_.find(key);
  if (found == objects_.end()) return missing_object(key);
  const Object& object = found->second;
  if (!tag.empty() && object.version.tag != tag) {
    return Error(ErrorCode::kReplaced, "the object was replaced").file(key).expected(tag).actual(object.version.tag);
  }
  if (target.size() > object.bytes.size() || offset > object.bytes.size() - target.size()) {
    return Error(ErrorCode::kCorrupt, "the range is not in the object").file(key).offset(offset);
  }
  std::memcpy(target.data(), object.bytes.data() + offset, target.size());
  return object.version;
}

Result<ObjectStore::Content> MemoryObjectStore::read_whole(std::string_view key, std::uint64_t bytes_max) {
  CAIRN_TRY(begin(Call::kReadWhole, key));
  const Lock lock(mutex_);
  const auto found = objects_.find(key);
  if (found == objects_.end()) return missing_object(key);
  if (found->second.bytes.size() > bytes_max) {
    return Error(ErrorCode::kCorrupt, "the object is larger than allowed").file(key);
  }
  return Content{found->second.bytes, found->second.version};
}

Result<WriteOutcome> MemoryObjectStore::write(std::string_view key, std::span<const std::byte> bytes,
                                              const WriteCondition& condition) {
  const auto act = [this, key = std::string(key), text = text_of(bytes), condition]() -> Result<WriteOutcome> {
    if (!holds(key, condition)) return WriteOutcome{WriteOutcome::Kind::kRefused};
    return WriteOutcome{WriteOutcome::Kind::kWritten, put_locked(key, text).tag};
  };
  if (condition.kind == WriteCondition::Kind::kNone) return carry_out<WriteOutcome>(Call::kWrite, key, act);
  return carry_out_condition(Call::kWrite, key, act);
}

Result<std::string> MemoryObjectStore::begin_upload(std::string_view key) {
  return carry_out<std::string>(Call::kBeginUpload, key, [this, key = std::string(key)]() -> Result<std::string> {
    std::string id = "upload-" + std::to_string(++uploads_begun_);
    uploads_.emplace(id, Upload{key, seconds(), {}});
    return id;
  });
}

Result<MemoryObjectStore::Upload*> MemoryObjectStore::upload_of(std::string_view key, std::string_view upload_id) {
  const auto found = uploads_.find(upload_id);
  if (found == uploads_.end() || found->second.key != key) return missing_object(key, "no such upload");
  return &found->second;
}

Result<UploadedPart> MemoryObjectStore::upload_part(std::string_view key, std::string_view upload_id,
                                                    std::uint32_t number,
                                                    std::span<const std::span<const std::byte>> pieces) {
  std::string bytes;
  std::uint32_t crc = 0;
  for (const std::span<const std::byte> piece : pieces) {
    bytes += text_of(piece);
    crc = crc32(piece, crc);
  }
  const auto act = [this, key = std::string(key), id = std::string(upload_id), number, bytes = std::move(bytes),
                    crc]() -> Result<UploadedPart> {
    if (number == 0 || number > kPartCountMax) return refused_upload(key, "InvalidArgument: the number of a part");
    Upload* upload = nullptr;
    CAIRN_TRY_ASSIGN(upload, upload_of(key, id));
    const UploadedPart answer{number, new_tag(), bytes.size(), crc};
    upload->parts.insert_or_assign(number, Part{bytes, answer});
    return answer;
  };
  return carry_out<UploadedPart>(Call::kUploadPart, key, act);
}

Result<ObjectVersion> MemoryObjectStore::complete_upload(std::string_view key, std::string_view upload_id,
                                                         std::span<const UploadedPart> parts, std::uint64_t size) {
  const auto act = [this, key = std::string(key), id = std::string(upload_id),
                    parts = std::vector<UploadedPart>(parts.begin(), parts.end()), size]() -> Result<ObjectVersion> {
    const Result<Upload*> upload = upload_of(key, id);
    if (!upload) {
      // After a lost answer a client compares the size.
      const auto object = objects_.find(key);
      const bool is_done = object != objects_.end() && object->second.bytes.size() == size;
      return is_done ? Result<ObjectVersion>(object->second.version) : Result<ObjectVersion>(upload.error());
    }
    std::string bytes;
    std::uint32_t last = 0;
    for (const UploadedPart& named : parts) {
      const auto found = (*upload)->parts.find(named.number);
      if (named.number <= last) return refused_upload(key, "InvalidPartOrder");
      if (found == (*upload)->parts.end() || found->second.answer.tag != named.tag) {
        return refused_upload(key, "InvalidPart");
      }
      const bool is_last = named.number == parts.back().number;
      if (!is_last && found->second.bytes.size() < kPartBytesMin) return refused_upload(key, "EntityTooSmall");
      bytes += found->second.bytes;
      last = named.number;
    }
    if (parts.empty()) return refused_upload(key, "MalformedXML: no parts");
    if (bytes.size() != size) return refused_upload(key, "the sum of the parts is not the size of the object");
    uploads_.erase(id);
    return put_locked(key, std::move(bytes));
  };
  return carry_out<ObjectVersion>(Call::kCompleteUpload, key, act);
}

Result<void> MemoryObjectStore::abort_upload(std::string_view key, std::string_view upload_id) {
  return carry_out<void>(Call::kAbortUpload, key, [this, id = std::string(upload_id)]() -> Result<void> {
    uploads_.erase(id);
    return {};
  });
}

Result<std::vector<PendingUpload>> MemoryObjectStore::pending_uploads(std::string_view prefix) {
  CAIRN_TRY(begin(Call::kPendingUploads, prefix));
  const Lock lock(mutex_);
  std::vector<PendingUpload> pending;
  for (const auto& [id, upload] : uploads_) {
    if (upload.key.starts_with(prefix)) pending.push_back({upload.key, id, upload.begun_at});
  }
  return pending;
}

Result<std::vector<UploadedPart>> MemoryObjectStore::uploaded_parts(std::string_view key, std::string_view upload_id) {
  CAIRN_TRY(begin(Call::kUploadedParts, key));
  const Lock lock(mutex_);
  Upload* upload = nullptr;
  CAIRN_TRY_ASSIGN(upload, upload_of(key, upload_id));
  std::vector<UploadedPart> parts;
  for (const auto& [number, part] : upload->parts) parts.push_back(part.answer);
  return parts;
}

Result<void> MemoryObjectStore::remove(std::string_view key) {
  return carry_out<void>(Call::kRemove, key, [this, key = std::string(key)]() -> Result<void> {
    objects_.erase(key);
    return {};
  });
}

Result<void> MemoryObjectStore::remove_all(std::span<const std::string> keys) {
  const auto act = [this, keys = std::vector<std::string>(keys.begin(), keys.end())]() -> Result<void> {
    for (const std::string& key : keys) objects_.erase(key);
    return {};
  };
  return carry_out<void>(Call::kRemoveAll, keys.empty() ? "" : keys.front(), act);
}

Result<WriteOutcome> MemoryObjectStore::remove_if(std::string_view key, const std::string& tag) {
  return carry_out_condition(Call::kRemoveIf, key, [this, key = std::string(key), tag]() -> Result<WriteOutcome> {
    if (!holds(key, WriteCondition::of_tag(tag))) return WriteOutcome{WriteOutcome::Kind::kRefused};
    objects_.erase(key);
    return WriteOutcome{WriteOutcome::Kind::kWritten};
  });
}

Result<ObjectPage> MemoryObjectStore::list(std::string_view prefix, bool by_folder, std::string_view next,
                                           std::uint32_t count_max) {
  CAIRN_TRY(begin(Call::kList, prefix));
  const Lock lock(mutex_);
  assert(count_max >= 1 && count_max <= 1000);
  ObjectPage page;
  std::string last;  // the key or the folder at the end of the page
  const std::size_t room = std::min(count_max, page_);
  for (auto at = objects_.lower_bound(prefix); at != objects_.end() && at->first.starts_with(prefix); ++at) {
    const std::size_t slash = by_folder ? at->first.find('/', prefix.size()) : std::string::npos;
    const std::string name = slash == std::string::npos ? at->first : at->first.substr(0, slash + 1);
    if (name <= next || name == last) continue;  // `next` is the last name of the page before
    if (page.objects.size() + page.folders.size() == room) {
      page.next = last;
      return page;
    }
    last = name;
    if (slash == std::string::npos) {
      page.objects.push_back({at->first, at->second.version});
    } else {
      page.folders.push_back(name);
    }
  }
  return page;
}

Result<double> MemoryObjectStore::now() {
  CAIRN_TRY(begin(Call::kNow, ""));
  const Lock lock(mutex_);
  return seconds();
}

}  // namespace cairn::storage
