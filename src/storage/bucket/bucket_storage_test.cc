#include "storage/bucket/bucket_storage.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "storage/bucket/part_size.h"
#include "storage/testing/memory_object_store.h"

namespace cairn::storage {
namespace {

class Bucket : public testing::Test {
 protected:
  using Call = MemoryObjectStore::Call;
  using Fault = MemoryObjectStore::Fault;

  std::shared_ptr<MemoryObjectStore> store_ = std::make_shared<MemoryObjectStore>();  // shared with the storage
  BucketStorage storage_{store_, "s3://bucket", "run/step-1"};
};

std::string noise(std::size_t bytes) {
  std::mt19937_64 random(bytes);
  std::string text;
  text.reserve(bytes);
  for (int i = 0; i < 4096; ++i) text += static_cast<char>(random());
  while (text.size() < bytes) text.append(text, 0, std::min(text.size() - 1, bytes - text.size()));  // no period of 2^n
  text.resize(bytes);
  return text;
}

std::span<const std::byte> part_of(const std::string& text, std::size_t begin, std::size_t bytes) {
  return std::as_bytes(std::span(text)).subspan(begin, std::min(bytes, text.size() - begin));
}

TEST(PartSize, KeepsToTheBoundsOfUploads) {
  constexpr std::uint64_t kTera = std::uint64_t{1} << 40;
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, kUsualPartBytes * 10'000,
                                    kUsualPartBytes * 10'000 + 1, 3 * kTera + 17, 50 * kTera}) {
    const std::uint64_t part = part_bytes_of(bytes);
    EXPECT_GE(part, ObjectStore::kPartBytesMin) << bytes;
    EXPECT_LE((bytes + part - 1) / part, ObjectStore::kPartCountMax) << bytes;
  }
}

TEST_F(Bucket, SmallFileIsOneRequest) {
  const std::string text = noise(10'000);
  auto file = storage_.create("file", {.size = text.size()}).value();
  ASSERT_TRUE(file->write_at(4'000, part_of(text, 4'000, 6'000)));
  ASSERT_TRUE(file->write_at(0, part_of(text, 0, 4'000)));
  EXPECT_TRUE(store_->contents().empty()) << "the object appears at the end";
  ASSERT_TRUE(file->finish(text.size(), Durability::kDurable));
  EXPECT_EQ(store_->contents().at("run/step-1/file"), text);
  EXPECT_EQ(store_->call_count(), 1u);
}

TEST_F(Bucket, WholePartsAreNotCollected) {
  const std::string text = noise(3 * kUsualPartBytes + 1'234'567);
  ASSERT_EQ(storage_.preferred_write_bytes(text.size()), kUsualPartBytes);
  auto file = storage_.create("file", {.size = text.size()}).value();
  for (const std::uint64_t part : {3, 1, 0, 2}) {
    ASSERT_TRUE(file->write_at(part * kUsualPartBytes, part_of(text, part * kUsualPartBytes, kUsualPartBytes)));
  }
  EXPECT_EQ(store_->call_count(Call::kUploadPart), 4u) << "each write is a part";
  ASSERT_TRUE(file->finish(text.size(), Durability::kDurable));
  EXPECT_TRUE(store_->contents().at("run/step-1/file") == text);
  EXPECT_EQ(store_->upload_count(), 0u);
}

TEST_F(Bucket, CollectsSegmentsOfThreads) {
  const std::string text = noise(2 * kUsualPartBytes + 777);
  constexpr std::size_t kSegment = 3 << 20;  // divides no part
  auto file = storage_.create("file", {.size = text.size()}).value();
  std::atomic<std::size_t> next{0};
  const auto write = [&] {
    while (true) {
      const std::size_t begin = kSegment * next.fetch_add(1);
      if (begin >= text.size()) break;
      const auto written = file->write_at(begin, part_of(text, begin, kSegment));
      EXPECT_TRUE(written) << written.error().what();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) threads.emplace_back(write);
  }
  ASSERT_TRUE(file->finish(text.size(), Durability::kDurable));
  EXPECT_TRUE(store_->contents().at("run/step-1/file") == text);
  EXPECT_EQ(store_->call_count(Call::kUploadPart), 3u);
}

TEST_F(Bucket, RewritesTheFirstBytes) {
  std::string text = noise(2 * kUsualPartBytes);
  auto file = storage_.create("file", {.size = text.size(), .rewritten_bytes = 4096}).value();
  for (const std::uint64_t part : {0, 1}) {
    ASSERT_TRUE(file->write_at(part * kUsualPartBytes, part_of(text, part * kUsualPartBytes, kUsualPartBytes)));
  }
  text.replace(0, 4096, std::string(4096, 'x'));
  ASSERT_TRUE(file->write_at(0, part_of(text, 0, 4096)));
  ASSERT_TRUE(file->finish(text.size(), Durability::kDurable));
  EXPECT_TRUE(store_->contents().at("run/step-1/file") == text);
  EXPECT_EQ(store_->call_count(Call::kUploadPart), 2u);
}

TEST_F(Bucket, GrowsBeyondAPartOfUnknownSize) {
  const std::string text = noise(kUsualPartBytes + 5);
  auto file = storage_.create("file", {}).value();
  ASSERT_TRUE(file->write_at(0, part_of(text, 0, text.size())));
  ASSERT_TRUE(file->finish(text.size(), Durability::kDurable));
  EXPECT_TRUE(store_->contents().at("run/step-1/file") == text);
}

TEST_F(Bucket, NeverFinishesAFileWithAGap) {
  const std::string text = noise(2 * kUsualPartBytes);
  {
    auto file = storage_.create("file", {.size = text.size()}).value();
    ASSERT_TRUE(file->write_at(0, part_of(text, 0, kUsualPartBytes)));
    ASSERT_TRUE(file->write_at(kUsualPartBytes + 1, part_of(text, 0, 100)));
    EXPECT_EQ(file->finish(text.size(), Durability::kDurable).error().code(), ErrorCode::kInternal);
  }
  EXPECT_TRUE(store_->contents().empty());
  EXPECT_EQ(store_->upload_count(), 0u);
}

TEST_F(Bucket, AnAbandonedFileLeavesNothing) {
  const std::string text = noise(2 * kUsualPartBytes);
  {
    auto file = storage_.create("file", {.size = text.size()}).value();
    ASSERT_TRUE(file->write_at(0, part_of(text, 0, kUsualPartBytes)));
    EXPECT_EQ(store_->upload_count(), 1u);
  }
  EXPECT_EQ(store_->upload_count(), 0u);
  EXPECT_TRUE(store_->contents().empty());
}

TEST_F(Bucket, AFailedPartFailsTheWrite) {
  const std::string text = noise(2 * kUsualPartBytes);
  store_->set_fault(Call::kUploadPart, 1, Fault::kFails);
  auto file = storage_.create("file", {.size = text.size()}).value();
  ASSERT_TRUE(file->write_at(0, part_of(text, 0, kUsualPartBytes)));
  const auto written = file->write_at(kUsualPartBytes, part_of(text, kUsualPartBytes, kUsualPartBytes));
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(written.error().file(), "file");
  EXPECT_EQ(written.error().offset(), kUsualPartBytes);
  EXPECT_NE(std::string(written.error().what()).find("s3://bucket/run/step-1"), std::string::npos);
}

TEST_F(Bucket, RefusesATakenName) {
  store_->put("run/step-1/file", "old");
  const auto whole = storage_.create_whole("file", "new", Durability::kDurable);
  ASSERT_FALSE(whole);
  EXPECT_EQ(whole.error().error_number(), EEXIST);
  EXPECT_EQ(storage_.create("file", {.size = 2 * kUsualPartBytes}).error().error_number(), EEXIST);
  auto small = storage_.create("file", {.size = 3}).value();
  ASSERT_TRUE(small->write_at(0, part_of("new", 0, 3)));
  EXPECT_EQ(small->finish(3, Durability::kDurable).error().error_number(), EEXIST);
  EXPECT_EQ(store_->contents().at("run/step-1/file"), "old");
}

TEST_F(Bucket, ItsOwnWriteIsNoTakenName) {
  store_->set_fault(Call::kWrite, 0, Fault::kLostAnswer);
  EXPECT_TRUE(storage_.create_whole("file", "new", Durability::kDurable));
  store_->set_fault(Call::kWrite, 1, Fault::kLostAnswer);
  store_->put("run/step-1/other", "old");
  const auto other = storage_.create_whole("other", "new", Durability::kDurable);
  EXPECT_EQ(other.error().error_number(), EEXIST) << "the content is of another writer";
}

TEST_F(Bucket, AnUnknownWriteIsAnError) {
  store_->set_fault(Call::kWrite, 0, Fault::kUnknownLate);
  EXPECT_EQ(storage_.create_whole("file", "new", Durability::kDurable).error().code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(store_->contents().empty());
  store_->land_late_calls();
  EXPECT_EQ(store_->contents().size(), 1u);
}

TEST_F(Bucket, ReadsOneVersion) {
  store_->put("run/step-1/file", noise(1 << 20));
  const auto file = storage_.open("file", false).value();
  std::vector<std::byte> bytes(100'000);
  ASSERT_TRUE(file->read_at(5, bytes));
  store_->put("run/step-1/file", noise(1 << 20));
  EXPECT_EQ(file->read_at(5, bytes).error().code(), ErrorCode::kUnavailable);
  store_->drop("run/step-1/file");
  EXPECT_EQ(file->read_at(5, bytes).error().code(), ErrorCode::kNotFound);
}

TEST_F(Bucket, ReadsALargeRangeInParts) {
  const std::string text = noise((40 << 20) + 3);
  store_->put("run/step-1/file", text);
  const auto file = storage_.open("file", false).value();
  std::string read(text.size() - 1, '\0');
  ASSERT_TRUE(file->read_at(1, std::as_writable_bytes(std::span(read))));
  EXPECT_TRUE(read == text.substr(1));
  EXPECT_EQ(store_->call_count(Call::kRead), 6u);
}

TEST_F(Bucket, ListsTheNamesOfAllPages) {
  store_->set_page(2);
  for (const char* key : {"run/step-1/", "run/step-1/a", "run/step-1/b/1", "run/step-1/b/2", "run/step-1/c",
                          "run/step-1/d", "run/step-1//e", "run/step-10/x", "run/step-1"}) {
    store_->put(key, "1");
  }
  std::string names;
  for (const ListedFile& file : storage_.list("").value()) names += file.name + (file.is_folder ? "/ " : " ");
  EXPECT_EQ(names, "a b/ c d ");
  EXPECT_EQ(storage_.list("b").value().size(), 2u);
  EXPECT_EQ(storage_.list("none").error().error_number(), ENOENT);
  EXPECT_EQ(storage_.list("a").error().error_number(), ENOENT);
}

TEST_F(Bucket, TouchedFilesHaveTheStoresTime) {
  store_->set_clock(1000.9);
  ASSERT_TRUE(storage_.create_whole("lease", "12345", Durability::kDurable));
  EXPECT_EQ(storage_.touched_at("lease").value(), 1000);
  store_->set_clock(2000);
  ASSERT_TRUE(storage_.touch("lease"));
  EXPECT_EQ(storage_.touched_at("lease").value(), 2000);
  EXPECT_EQ(storage_.touched_at("").value(), 2000);
  ASSERT_TRUE(storage_.rewrite("lease", "ab"));
  EXPECT_EQ(store_->contents().at("run/step-1/lease"), "ab345");
  EXPECT_EQ(storage_.touch("none").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(storage_.rewrite("none", "1").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(storage_.touched_at("none").error().code(), ErrorCode::kNotFound);
  ASSERT_TRUE(storage_.remove("lease"));
  EXPECT_EQ(storage_.touched_at("").error().code(), ErrorCode::kNotFound);
}

TEST_F(Bucket, ATouchNeverRestoresAFile) {
  ASSERT_TRUE(storage_.create_whole("lease", "1", Durability::kDurable));
  store_->set_before_call([this](Call call, std::string_view) {
    if (call == Call::kWrite) store_->drop("run/step-1/lease");
  });
  EXPECT_EQ(storage_.touch("lease").error().code(), ErrorCode::kNotFound);
  EXPECT_TRUE(store_->contents().empty());
}

TEST_F(Bucket, OpensOtherPrefixes) {
  store_->put("run/step-2/file", "2");
  const auto parent = storage_.open_parent().value();
  EXPECT_EQ(read_small(*parent, "step-2/file", 10).value(), "2");
  const auto folder = parent->open_folder("step-2").value();
  EXPECT_EQ(read_small(*folder, "file", 10).value(), "2");
  EXPECT_EQ(parent->open_folder("step-3").error().code(), ErrorCode::kNotFound);
  const auto root = parent->open_parent().value();
  EXPECT_EQ(read_small(*root, "run/step-2/file", 10).value(), "2");
  EXPECT_EQ(root->open_parent().error().code(), ErrorCode::kUnsupported);
}

TEST_F(Bucket, RefusesRenamesAndMoves) {
  EXPECT_FALSE(storage_.has_rename());
  EXPECT_EQ(storage_.lock().value(), nullptr);
  EXPECT_EQ(storage_.publish("a", "b").error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(storage_.replace("a", "b").error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(storage_.move_folder("a", "b").error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(storage_.exchange_folders("a", "b").error().code(), ErrorCode::kUnsupported);
}

TEST_F(Bucket, ConditionsDecideBetweenWriters) {
  ASSERT_EQ(storage_.write_if("file", "1", WriteCondition::absent()).value().kind, WriteOutcome::Kind::kWritten);
  const TaggedContent first = storage_.read_tagged("file", 10).value();
  const auto second = storage_.write_if("file", "2", WriteCondition::of_tag(first.tag)).value();
  ASSERT_EQ(second.kind, WriteOutcome::Kind::kWritten);
  EXPECT_EQ(storage_.write_if("file", "3", WriteCondition::of_tag(first.tag)).value().kind,
            WriteOutcome::Kind::kRefused);
  EXPECT_EQ(storage_.read_tagged("file", 10).value().bytes, "2");
  EXPECT_EQ(storage_.remove_if("file", first.tag).value().kind, WriteOutcome::Kind::kRefused);
  EXPECT_EQ(storage_.remove_if("file", second.tag).value().kind, WriteOutcome::Kind::kWritten);
  EXPECT_EQ(storage_.read_tagged("file", 10).error().code(), ErrorCode::kNotFound);
}

TEST_F(Bucket, TriesConditionsOnce) {
  EXPECT_TRUE(storage_.keeps_conditions().value());
  const std::uint64_t calls = store_->call_count();
  EXPECT_TRUE(storage_.keeps_conditions().value());
  EXPECT_EQ(store_->call_count(), calls);
  EXPECT_TRUE(store_->contents().empty());
}

TEST_F(Bucket, FindsThatConditionsAreIgnored) {
  store_->ignore_conditions();
  EXPECT_FALSE(storage_.keeps_conditions().value());
  EXPECT_TRUE(store_->contents().empty());
}

TEST_F(Bucket, AFailedTrialIsNoAnswer) {
  store_->set_fault(Call::kWrite, 1, Fault::kLostAnswer);
  EXPECT_EQ(storage_.keeps_conditions().error().code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(storage_.keeps_conditions().value());
}

TEST_F(Bucket, EndsUnfinishedWritesByName) {
  ASSERT_TRUE(store_->begin_upload("run/step-1/one"));
  ASSERT_TRUE(store_->begin_upload("run/step-1/two"));
  ASSERT_TRUE(store_->begin_upload("run/step-10/one"));
  ASSERT_TRUE(storage_.abandon_writes([](std::string_view name) { return name == "one"; }));
  EXPECT_EQ(store_->upload_count(), 2u);
  EXPECT_EQ(store_->pending_uploads("run/step-1/").value().front().key, "run/step-1/two");
}

TEST_F(Bucket, RemovesFilesInOneRequest) {
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(storage_.create_whole(name, "1", Durability::kDurable));
  const std::vector<std::string> names{"a", "b", "none", "../x"};
  const std::vector<Error> failures = storage_.remove_all(names);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].code(), ErrorCode::kUnsafe);
  EXPECT_EQ(store_->contents().size(), 1u);
  EXPECT_EQ(store_->call_count(Call::kRemoveAll), 1u);
  EXPECT_EQ(store_->call_count(Call::kRemove), 0u);
}

TEST_F(Bucket, AFailedBatchIsRemovedByNames) {
  for (const char* name : {"a", "b"}) ASSERT_TRUE(storage_.create_whole(name, "1", Durability::kDurable));
  store_->set_fault(Call::kRemoveAll, 0, Fault::kFails);
  store_->set_fault(Call::kRemove, 1, Fault::kFails);
  const std::vector<std::string> names{"a", "b"};
  const std::vector<Error> failures = storage_.remove_all(names);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].file(), "b");
}

TEST_F(Bucket, NamesNeverLeaveThePrefix) {
  for (const std::string_view name : {"", "/etc", "../step-2/file", "a/../../x"}) {
    EXPECT_EQ(storage_.open(name, true).error().code(), ErrorCode::kUnsafe) << name;
    EXPECT_EQ(storage_.remove(name).error().code(), ErrorCode::kUnsafe) << name;
  }
}

}  // namespace
}  // namespace cairn::storage
