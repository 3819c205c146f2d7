#include "storage/bucket/bucket_place.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace cairn::storage {

std::string BucketPlace::key_of(std::string_view name) const {
  if (prefix.empty()) return std::string(name);
  return name.empty() ? prefix : prefix + "/" + std::string(name);
}

std::string BucketPlace::keys_in(std::string_view folder) const {
  const std::string key = key_of(folder);
  return key.empty() ? key : key + "/";
}

BucketPlace BucketPlace::below(std::string_view folder) const {
  return {store, unstopped, memory, bucket, key_of(folder)};
}

Error BucketPlace::explain(const Error& error, std::string_view name, std::string_view action) const {
  Error explained(error.code(), error.message());
  if (!name.empty()) explained = std::move(explained).file(name);
  if (error.offset()) explained = std::move(explained).offset(*error.offset());
  if (error.expected()) explained = std::move(explained).expected(*error.expected());
  if (error.actual()) explained = std::move(explained).actual(*error.actual());
  if (!error.doing().empty()) explained = std::move(explained).while_doing(error.doing());
  // Callers tell a missing file by the number.
  const int missing = error.code() == ErrorCode::kNotFound ? ENOENT : 0;
  if (const int number = error.error_number() != 0 ? error.error_number() : missing; number != 0) {
    explained = std::move(explained).error_number(number);
  }
  return std::move(explained).while_doing(std::string(action) + " in '" + url() + "'");
}

Error name_is_taken(const BucketPlace& place, std::string_view name) {
  return place.explain(Error(ErrorCode::kUnavailable, "an object of this name exists").error_number(EEXIST), name,
                       "creating an object");
}

namespace {

Result<bool> has_content(ObjectStore& store, const std::string& key, std::span<const std::byte> bytes) {
  const Result<ObjectStore::Content> content = store.read_whole(key, bytes.size());
  if (content) return std::ranges::equal(std::as_bytes(std::span(content->bytes)), bytes);
  const bool differs = content.error().code() == ErrorCode::kNotFound || content.error().code() == ErrorCode::kCorrupt;
  return differs ? Result<bool>(false) : Result<bool>(content.error());
}

}  // namespace

Result<void> create_object(const BucketPlace& place, std::string_view name, std::span<const std::byte> bytes) {
  const auto explain = [&](const Error& error) { return place.explain(error, name, "creating an object"); };
  const std::string key = place.key_of(name);
  const Result<WriteOutcome> outcome = place.store->write(key, bytes, WriteCondition::absent());
  if (!outcome) return explain(outcome.error());
  switch (outcome->kind) {
    case WriteOutcome::Kind::kWritten: return {};
    case WriteOutcome::Kind::kRefused: {
      if (!outcome->answer_was_lost) return name_is_taken(place, name);
      const Result<bool> is_own = has_content(*place.store, key, bytes);
      if (!is_own) return explain(is_own.error());
      return *is_own ? Result<void>() : Result<void>(name_is_taken(place, name));
    }
    case WriteOutcome::Kind::kUnknown: break;
  }
  return explain(outcome->why.value_or(Error(ErrorCode::kUnavailable, "the store did not answer in time")));
}

}  // namespace cairn::storage
