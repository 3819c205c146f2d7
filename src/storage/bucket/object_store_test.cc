#include "storage/bucket/object_store.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "core/checksum.h"
#include "storage/bucket/condition_probe.h"
#include "storage/bucket/s3_client.h"
#include "storage/testing/bucket_server.h"

namespace cairn::storage {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// The store of the address in CAIRN_TEST_S3_ADDRESS, s3://bucket/prefix, with the settings of AWS; else a BucketServer.
class LiveStore : public testing::Test {
 protected:
  void SetUp() override {
    const char* const text = std::getenv("CAIRN_TEST_S3_ADDRESS");
    Environment environment = process_environment();
    if (text == nullptr) {
      server_ = std::make_unique<BucketServer>();
      environment = [this](const char* name) { return server_->variable(name); };
    }
    const Result<BucketAddress> address = parse_bucket_address(text != nullptr ? text : "s3://bucket/run");
    ASSERT_TRUE(address) << address.error().what();
    // Some servers answer 500 to requests that they do not have.
    const StoreOptions options{.retry = {.without_success_max = std::chrono::seconds(5)}};
    Result<std::unique_ptr<S3Client>> opened = S3Client::open(*address, options, environment);
    ASSERT_TRUE(opened) << opened.error().what();
    store_ = *std::move(opened);
    prefix_ = address->prefix + "/" + std::to_string(std::random_device{}()) + "/";
  }
  void TearDown() override {
    if (!store_) return;
    for (std::string next;;) {
      const Result<ObjectPage> page = store_->list(prefix_, false, next);
      ASSERT_TRUE(page) << page.error().what();
      std::vector<std::string> keys;
      for (const ListedObject& object : page->objects) keys.push_back(object.key);
      const Result<void> removed = store_->remove_all(keys);
      ASSERT_TRUE(removed) << removed.error().what();
      next = page->next;
      if (next.empty()) break;
    }
  }

  std::unique_ptr<BucketServer> server_;
  std::unique_ptr<ObjectStore> store_;
  std::string prefix_;
};

TEST_F(LiveStore, KeepsAnObjectAsWritten) {
  const std::string key = prefix_ + "a b+c%d/\xc3\xa9'(x)!*&=;@$,~";
  const Result<WriteOutcome> written = store_->write(key, bytes_of("some bytes"));
  ASSERT_TRUE(written) << written.error().what();
  const Result<ObjectStore::Content> content = store_->read_whole(key, 100);
  ASSERT_TRUE(content) << content.error().what();
  EXPECT_EQ(content->bytes, "some bytes");
  EXPECT_EQ(content->version.tag, written->tag);
  const Result<ObjectVersion> version = store_->describe(key);
  ASSERT_TRUE(version) << version.error().what();
  EXPECT_EQ(version->tag, written->tag);
  EXPECT_EQ(version->size, 10u);
  EXPECT_NEAR(version->changed_at, *store_->now(), 60);
  std::string part(4, '\0');
  const Result<ObjectVersion> read = store_->read(key, 5, std::as_writable_bytes(std::span(part)), written->tag);
  ASSERT_TRUE(read) << read.error().what();
  EXPECT_EQ(part, "byte");
  EXPECT_EQ(read->size, 10u);
  const Result<ObjectVersion> beyond = store_->read(key, 8, std::as_writable_bytes(std::span(part)));
  ASSERT_FALSE(beyond);
  const Result<ObjectPage> page = store_->list(prefix_, false);
  ASSERT_TRUE(page) << page.error().what();
  ASSERT_EQ(page->objects.size(), 1u);
  EXPECT_EQ(page->objects[0].key, key);
  EXPECT_EQ(page->objects[0].version.tag, written->tag);
}

TEST_F(LiveStore, KeepsTheConditionsOfWrites) {
  const std::string key = prefix_ + "record";
  const Result<WriteOutcome> first = store_->write(key, bytes_of("1"), WriteCondition::absent());
  ASSERT_TRUE(first) << first.error().what();
  EXPECT_EQ(first->kind, WriteOutcome::Kind::kWritten);
  EXPECT_EQ(store_->write(key, bytes_of("2"), WriteCondition::absent())->kind, WriteOutcome::Kind::kRefused);
  const Result<WriteOutcome> second = store_->write(key, bytes_of("2"), WriteCondition::of_tag(first->tag));
  ASSERT_TRUE(second) << second.error().what();
  EXPECT_EQ(second->kind, WriteOutcome::Kind::kWritten);
  EXPECT_EQ(store_->write(key, bytes_of("3"), WriteCondition::of_tag(first->tag))->kind, WriteOutcome::Kind::kRefused);
  EXPECT_EQ(store_->read_whole(key, 10)->bytes, "2");
  std::string byte(1, '\0');
  const Result<ObjectVersion> stale = store_->read(key, 0, std::as_writable_bytes(std::span(byte)), first->tag);
  ASSERT_FALSE(stale);
  EXPECT_EQ(stale.error().code(), ErrorCode::kReplaced);
  EXPECT_EQ(store_->write(prefix_ + "none", bytes_of("3"), WriteCondition::of_tag(first->tag))->kind,
            WriteOutcome::Kind::kRefused);
}

TEST_F(LiveStore, KeepsTheConditionsOfRemovals) {
  const std::string key = prefix_ + "record";
  const Result<WriteOutcome> first = store_->write(key, bytes_of("1"));
  const Result<WriteOutcome> second = store_->write(key, bytes_of("22"));
  ASSERT_TRUE(first && second);
  EXPECT_EQ(store_->remove_if(key, first->tag)->kind, WriteOutcome::Kind::kRefused);
  EXPECT_EQ(store_->remove_if(key, second->tag)->kind, WriteOutcome::Kind::kWritten);
  EXPECT_EQ(store_->describe(key).error().code(), ErrorCode::kNotFound);
}

TEST_F(LiveStore, ShowsItsConditions) {
  const Result<StoreConditions> conditions = probe_conditions(*store_, prefix_);
  ASSERT_TRUE(conditions) << conditions.error().what();
  EXPECT_TRUE(conditions->of_writes);
  EXPECT_TRUE(conditions->of_removals);
}

TEST_F(LiveStore, JoinsThePartsOfAnUpload) {
  const std::string key = prefix_ + "big";
  const Result<std::string> id = store_->begin_upload(key);
  ASSERT_TRUE(id) << id.error().what();
  const Result<std::vector<PendingUpload>> pending = store_->pending_uploads(prefix_);
  ASSERT_TRUE(pending) << pending.error().what();
  ASSERT_EQ(pending->size(), 1u);
  EXPECT_EQ(pending->at(0).upload_id, *id);
  EXPECT_EQ(pending->at(0).key, key);
  std::string data(ObjectStore::kPartBytesMin + 1000, 'x');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 + i / 251);
  const auto all = bytes_of(data);
  const std::vector<std::span<const std::byte>> one{all.first(1000),
                                                    all.subspan(1000, ObjectStore::kPartBytesMin - 1000)};
  const std::vector<std::span<const std::byte>> two{all.subspan(ObjectStore::kPartBytesMin)};
  const Result<UploadedPart> last = store_->upload_part(key, *id, 2, two);
  const Result<UploadedPart> first = store_->upload_part(key, *id, 1, one);
  ASSERT_TRUE(first) << first.error().what();
  ASSERT_TRUE(last) << last.error().what();
  const Result<std::vector<UploadedPart>> listed = store_->uploaded_parts(key, *id);
  ASSERT_TRUE(listed) << listed.error().what();
  ASSERT_EQ(listed->size(), 2u);
  EXPECT_EQ(listed->at(0).tag, first->tag);
  EXPECT_EQ(listed->at(1).size, 1000u);
  const std::vector<UploadedPart> parts{*first, *last};
  const Result<ObjectVersion> completed = store_->complete_upload(key, *id, parts, data.size());
  ASSERT_TRUE(completed) << completed.error().what();
  EXPECT_EQ(completed->size, data.size());
  std::string read(data.size(), '\0');
  const Result<ObjectVersion> version = store_->read(key, 0, std::as_writable_bytes(std::span(read)), completed->tag);
  ASSERT_TRUE(version) << version.error().what();
  EXPECT_TRUE(read == data);
  const Result<ObjectVersion> again = store_->complete_upload(key, *id, parts, data.size());
  EXPECT_TRUE(again) << again.error().what();
}

TEST_F(LiveStore, ForgetsAnAbortedUpload) {
  const std::string key = prefix_ + "big";
  const Result<std::string> id = store_->begin_upload(key);
  ASSERT_TRUE(id) << id.error().what();
  ASSERT_TRUE(store_->abort_upload(key, *id));
  EXPECT_TRUE(store_->abort_upload(key, *id));
  EXPECT_EQ(store_->pending_uploads(prefix_)->size(), 0u);
  const std::vector<std::span<const std::byte>> bytes{bytes_of("x")};
  const Result<UploadedPart> part = store_->upload_part(key, *id, 1, bytes);
  ASSERT_FALSE(part);
  EXPECT_EQ(part.error().code(), ErrorCode::kNotFound) << part.error().what();
}

TEST_F(LiveStore, ListsPagesAndFolders) {
  for (const char* name : {"a", "b/1", "b/2", "c", "d"}) {
    ASSERT_TRUE(store_->write(prefix_ + name, bytes_of("x")));
  }
  std::vector<std::string> names;
  for (std::string next;;) {
    const Result<ObjectPage> page = store_->list(prefix_, false, next, 2);
    ASSERT_TRUE(page) << page.error().what();
    EXPECT_LE(page->objects.size(), 2u);
    for (const ListedObject& object : page->objects) names.push_back(object.key.substr(prefix_.size()));
    next = page->next;
    if (next.empty()) break;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b/1", "b/2", "c", "d"}));
  const Result<ObjectPage> page = store_->list(prefix_, true);
  ASSERT_TRUE(page) << page.error().what();
  EXPECT_EQ(page->objects.size(), 3u);
  EXPECT_EQ(page->folders, std::vector<std::string>{prefix_ + "b/"});
}

TEST_F(LiveStore, RemovesManyObjects) {
  std::vector<std::string> keys;
  for (int i = 0; i < 5; ++i) {
    keys.push_back(prefix_ + "n&<" + std::to_string(i));
    ASSERT_TRUE(store_->write(keys.back(), bytes_of("x")));
  }
  keys.push_back(prefix_ + "missing");
  const Result<void> removed = store_->remove_all(keys);
  ASSERT_TRUE(removed) << removed.error().what();
  EXPECT_EQ(store_->list(prefix_, false)->objects.size(), 0u);
  EXPECT_TRUE(store_->remove(keys[0]));
}

TEST_F(LiveStore, HasNoMissingObjects) {
  for (const Error& error :
       {store_->describe(prefix_ + "none").error(), store_->read_whole(prefix_ + "none", 9).error()}) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound) << error.what();
  }
}

}  // namespace
}  // namespace cairn::storage
