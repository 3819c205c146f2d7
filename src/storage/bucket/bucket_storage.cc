#include "storage/bucket/bucket_storage.h"

#include <algorithm>
#include <utility>

#include "storage/bucket/bucket_readable_file.h"
#include "storage/bucket/bucket_writable_file.h"
#include "storage/bucket/part_size.h"

namespace cairn::storage {
namespace {

// The most names of a folder: a listing beyond is a mistake in the prefix.
constexpr std::size_t kNamesMax = 1'000'000;
// The most bytes of an object that is touched or rewritten.
constexpr std::uint64_t kRewrittenBytesMax = 1 << 20;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

BucketStorage::BucketStorage(std::shared_ptr<ObjectStore> store, std::string bucket, std::string prefix,
                             std::shared_ptr<BucketMemory> memory)
    : place_{store, store, std::move(memory), std::move(bucket), std::move(prefix)} {}

void BucketStorage::set_stop(std::shared_ptr<const os::StopFlag> stop) {
  if (std::shared_ptr<ObjectStore> stopped = place_.unstopped->with_stop(std::move(stop))) {
    place_.store = std::move(stopped);
  }
}

Result<void> BucketStorage::make_folder(std::string_view name) { return check_name(name); }

Result<void> BucketStorage::join_folder(std::string_view name) {
  CAIRN_TRY(check_name(name));
  CAIRN_TRY(first_object_in(name, "opening a folder"));
  return {};
}

Result<void> BucketStorage::remove_folder(std::string_view name) { return check_name(name); }

Result<std::unique_ptr<WritableFile>> BucketStorage::create(std::string_view name, const CreateOptions& options) {
  CAIRN_TRY(check_name(name));
  return create_bucket_file(place_, name, options);
}

Result<void> BucketStorage::create_whole(std::string_view name, std::string_view bytes, Durability /*durability*/) {
  CAIRN_TRY(check_name(name));
  return create_object(place_, name, bytes_of(bytes));
}

Result<std::unique_ptr<ReadableFile>> BucketStorage::open(std::string_view name, bool /*follow_links*/) const {
  CAIRN_TRY(check_name(name));
  return open_bucket_file(place_, name);
}

Result<std::vector<ListedFile>> BucketStorage::list(std::string_view folder) const {
  if (!folder.empty()) CAIRN_TRY(check_name(folder));
  const std::string prefix = place_.keys_in(folder);
  std::vector<ListedFile> files;
  bool is_there = folder.empty();
  std::string next;
  do {
    const Result<ObjectPage> page = place_.store->list(prefix, true, next);
    if (!page) return place_.explain(page.error(), folder, "listing objects");
    is_there = is_there || !page->objects.empty() || !page->folders.empty();
    for (const ListedObject& object : page->objects) {
      // Some programs put an empty object in place of a folder: its key ends with '/'.
      if (object.key.size() == prefix.size()) continue;
      files.push_back({object.key.substr(prefix.size()), false, true, object.version.changed_at});
    }
    for (const std::string& key : page->folders) {
      const std::string name = key.substr(prefix.size(), key.size() - prefix.size() - 1);
      if (!name.empty()) files.push_back({name, true});  // empty: of keys with "//"
    }
    if (files.size() > kNamesMax) {
      return place_.explain(Error(ErrorCode::kUnsupported, "too many objects in a folder")
                                .expected("at most " + std::to_string(kNamesMax)),
                            folder, "listing objects");
    }
    next = page->next;
  } while (!next.empty());
  if (is_there) return files;
  return place_.explain(Error(ErrorCode::kNotFound, "no object is in the folder"), folder, "listing objects");
}

Result<void> BucketStorage::publish(std::string_view /*from*/, std::string_view to) {
  return place_.explain(Error(ErrorCode::kUnsupported, "a bucket has no rename"), to, "renaming an object");
}
Result<void> BucketStorage::replace(std::string_view from, std::string_view to) { return publish(from, to); }
Result<void> BucketStorage::move_folder(std::string_view from, std::string_view to) { return publish(from, to); }
Result<void> BucketStorage::exchange_folders(std::string_view one, std::string_view two) { return publish(one, two); }

Result<void> BucketStorage::remove(std::string_view name) {
  CAIRN_TRY(check_name(name));
  const Result<void> removed = place_.unstopped->remove(place_.key_of(name));
  return removed ? removed : place_.explain(removed.error(), name, "removing an object");
}

Result<void> BucketStorage::write_again(std::string_view name, std::string_view bytes, std::string_view action) {
  CAIRN_TRY(check_name(name));
  const std::string key = place_.key_of(name);
  Result<ObjectStore::Content> content = place_.store->read_whole(key, kRewrittenBytesMax);
  if (!content) return place_.explain(content.error(), name, action);
  std::string& text = content->bytes;
  text.replace(0, std::min(bytes.size(), text.size()), bytes);
  const Result<WriteOutcome> outcome =
      place_.store->write(key, bytes_of(text), WriteCondition::of_tag(content->version.tag));
  if (!outcome) return place_.explain(outcome.error(), name, action);
  switch (outcome->kind) {
    case WriteOutcome::Kind::kWritten: return {};
    case WriteOutcome::Kind::kRefused: {
      // This write before its answer was lost, another writer, or a removal.
      const Result<ObjectVersion> version = place_.store->describe(key);
      if (!version) return place_.explain(version.error(), name, action);
      if (outcome->answer_was_lost) return {};
      return place_.explain(Error(ErrorCode::kUnavailable, "the object was replaced meanwhile"), name, action);
    }
    case WriteOutcome::Kind::kUnknown: break;
  }
  const Error unknown(ErrorCode::kUnavailable, "the store did not answer in time");
  return place_.explain(outcome->why.value_or(unknown), name, action);
}

Result<void> BucketStorage::rewrite(std::string_view name, std::string_view bytes) {
  return write_again(name, bytes, "rewriting an object");
}

Result<void> BucketStorage::touch(std::string_view name) { return write_again(name, "", "touching an object"); }

Result<ListedObject> BucketStorage::first_object_in(std::string_view folder, std::string_view action) const {
  const std::string prefix = place_.keys_in(folder);
  std::string next;
  do {
    Result<ObjectPage> page = place_.store->list(prefix, false, next, 1);
    if (!page) return place_.explain(page.error(), folder, action);
    if (!page->objects.empty()) return std::move(page->objects.front());
    next = page->next;  // of a page without names
  } while (!next.empty());
  return place_.explain(Error(ErrorCode::kNotFound, "no object is in the folder"), folder, action);
}

Result<double> BucketStorage::touched_at(std::string_view name) const {
  constexpr std::string_view kAction = "reading the time of an object";
  if (!name.empty()) {
    CAIRN_TRY(check_name(name));
    const Result<ObjectVersion> version = place_.store->describe(place_.key_of(name));
    if (version) return version->changed_at;
    if (version.error().code() != ErrorCode::kNotFound) return place_.explain(version.error(), name, kAction);
  }
  CAIRN_TRY_ASSIGN(const ListedObject first, first_object_in(name, kAction));
  return first.version.changed_at;
}

Result<std::unique_ptr<Storage>> BucketStorage::open_parent() const {
  if (place_.prefix.empty()) {
    return Error(ErrorCode::kUnsupported, "a bucket has no directory above")
        .while_doing("opening '" + place_.bucket + "'");
  }
  const std::size_t slash = place_.prefix.rfind('/');
  BucketPlace above = place_;
  above.prefix = slash == std::string::npos ? "" : place_.prefix.substr(0, slash);
  return std::unique_ptr<Storage>(new BucketStorage(std::move(above)));
}

Result<std::unique_ptr<Storage>> BucketStorage::open_folder(std::string_view name) const {
  CAIRN_TRY(check_name(name));
  CAIRN_TRY(first_object_in(name, "opening a folder"));
  return std::unique_ptr<Storage>(new BucketStorage(place_.below(name)));
}

std::uint64_t BucketStorage::preferred_write_bytes(std::uint64_t file_bytes) const { return part_bytes_of(file_bytes); }

Result<TaggedContent> BucketStorage::read_tagged(std::string_view name, std::uint64_t bytes_max) const {
  CAIRN_TRY(check_name(name));
  Result<ObjectStore::Content> content = place_.store->read_whole(place_.key_of(name), bytes_max);
  if (!content) return place_.explain(content.error(), name, "reading an object");
  return TaggedContent{std::move(content->bytes), std::move(content->version.tag)};
}

Result<WriteOutcome> BucketStorage::write_if(std::string_view name, std::string_view bytes,
                                             const WriteCondition& condition) {
  CAIRN_TRY(check_name(name));
  Result<WriteOutcome> outcome = place_.store->write(place_.key_of(name), bytes_of(bytes), condition);
  if (!outcome) return place_.explain(outcome.error(), name, "writing an object");
  if (outcome->why) outcome->why = place_.explain(*outcome->why, name, "writing an object");
  return outcome;
}

Result<WriteOutcome> BucketStorage::remove_if(std::string_view name, const std::string& tag) {
  CAIRN_TRY(check_name(name));
  Result<WriteOutcome> outcome = place_.unstopped->remove_if(place_.key_of(name), tag);
  if (!outcome) return place_.explain(outcome.error(), name, "removing an object");
  if (outcome->why) outcome->why = place_.explain(*outcome->why, name, "removing an object");
  return outcome;
}

Result<double> BucketStorage::now() const {
  Result<double> now = place_.store->now();
  return now ? now : place_.explain(now.error(), "", "reading the clock of the store");
}

Result<bool> BucketStorage::keeps_conditions() {
  Result<bool> keeps = place_.memory->trial.keeps_conditions(*place_.store, place_.keys_in(""));
  return keeps ? keeps : place_.explain(keeps.error(), "", "trying conditional writes");
}

Result<void> BucketStorage::abandon_writes(const std::function<bool(std::string_view name)>& is_abandoned) {
  const std::string prefix = place_.keys_in("");
  const Result<std::vector<PendingUpload>> pending = place_.unstopped->pending_uploads(prefix);
  if (!pending) return place_.explain(pending.error(), "", "listing unfinished uploads");
  for (const PendingUpload& upload : *pending) {
    const std::string_view name = std::string_view(upload.key).substr(prefix.size());
    if (!is_abandoned(name)) continue;
    const Result<void> aborted = place_.unstopped->abort_upload(upload.key, upload.upload_id);
    if (!aborted) return place_.explain(aborted.error(), name, "ending an unfinished upload");
  }
  return {};
}

std::vector<Error> BucketStorage::remove_all(std::span<const std::string> names) {
  std::vector<Error> failures;
  std::vector<std::string> keys;
  for (const std::string& name : names) {
    if (const Result<void> checked = check_name(name); checked) {
      keys.push_back(place_.key_of(name));
    } else {
      failures.push_back(checked.error());
    }
  }
  if (keys.empty() || place_.unstopped->remove_all(keys)) return failures;
  // A removal one by one tells which objects are left.
  return Storage::remove_all(names);
}

}  // namespace cairn::storage
