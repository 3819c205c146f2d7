#include "storage/bucket/s3_client.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "storage/bucket/condition_probe.h"
#include "storage/testing/bucket_server.h"

namespace cairn::storage {
namespace {

using End = ServerAnswer::End;

std::span<const std::byte> bytes_in(std::string_view text) { return std::as_bytes(std::span(text)); }

// A client of a BucketServer that breaks answers.
class BrokenStore : public testing::Test {
 protected:
  void open(RetryLimits retry = kQuick) {
    options_.retry = retry;
    Result<std::unique_ptr<S3Client>> opened = S3Client::open(
        *parse_bucket_address("s3://bucket"), options_,
        [this](const char* name) { return variables_.count(name) ? variables_[name] : server_.variable(name); });
    ASSERT_TRUE(opened) << opened.error().what();
    store_ = *std::move(opened);
  }
  // Breaks the first `count` answers to requests of the method, after the store has done its work.
  void break_after(int count, const std::string& method, ServerAnswer::End end) {
    server_.after = [count, method, end](const ServerRequest& request, ServerAnswer& answer) mutable {
      if (request.method != method || count == 0) return;
      --count;
      answer.end = end;
      answer.sent_bytes = answer.body.size() / 2;
    };
  }
  // Answers so to the first `count` requests of the method, in place of the store.
  void answer_before(int count, const std::string& method, const ServerAnswer& answer) {
    server_.before = [count, method, answer](const ServerRequest& request) mutable -> std::optional<ServerAnswer> {
      if (request.method != method || count == 0) return std::nullopt;
      --count;
      return answer;
    };
  }
  std::string read_all(std::string_view key, std::size_t size, std::optional<ErrorCode>* code = nullptr) {
    std::string bytes(size, '\0');
    const Result<ObjectVersion> read = store_->read(key, 0, std::as_writable_bytes(std::span(bytes)));
    if (!read && code != nullptr) *code = read.error().code();
    return read ? bytes : "";
  }
  ErrorCode code_of_read(std::size_t size) {
    std::optional<ErrorCode> code;
    read_all("a", size, &code);
    return code.value_or(ErrorCode::kInternal);
  }

  static constexpr RetryLimits kQuick{.first_pause_max = std::chrono::milliseconds(1),
                                      .pause_max = std::chrono::milliseconds(5),
                                      .without_success_max = std::chrono::minutes(5),
                                      .without_contact_max = std::chrono::minutes(5)};
  // A single try.
  static constexpr RetryLimits kNoTime{.first_pause_max = std::chrono::milliseconds(1),
                                       .pause_max = std::chrono::milliseconds(1),
                                       .without_success_max = std::chrono::milliseconds(0),
                                       .without_contact_max = std::chrono::milliseconds(0)};
  BucketServer server_;
  std::map<std::string, std::optional<std::string>> variables_;
  StoreOptions options_;
  std::unique_ptr<S3Client> store_;
};

TEST_F(BrokenStore, AnswersAfterAPauseOfTheStore) {
  open();
  for (const ServerAnswer& answer : {fault_answer(503, "SlowDown"), fault_answer(429, "TooManyRequests"),
                                     fault_answer(500, "InternalError"), fault_answer(400, "RequestTimeout"),
                                     ServerAnswer{.status = 502, .body = "<html>"}, ServerAnswer{.end = End::kLost}}) {
    answer_before(3, "PUT", answer);
    const Result<WriteOutcome> written = store_->write("a", bytes_in("x"));
    EXPECT_TRUE(written) << written.error().what();
  }
}

TEST_F(BrokenStore, IsGivenUpAfterTheLimit) {
  open(kNoTime);
  answer_before(1000, "PUT", fault_answer(503, "SlowDown"));
  const Result<WriteOutcome> written = store_->write("a", bytes_in("x"));
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(std::string(written.error().what()).find("SlowDown"), std::string::npos) << written.error().what();
}

TEST_F(BrokenStore, ReadsOnWhereTheConnectionEnded) {
  open();
  const std::string data(3 << 20, 'q');
  ASSERT_TRUE(store_->write("a", bytes_in(data)));
  break_after(2, "GET", End::kCut);
  EXPECT_TRUE(read_all("a", data.size()) == data);
  const std::vector<ServerRequest> requests = server_.http().requests();
  EXPECT_EQ(requests.back().header("if-match"), "\"1\"");
  EXPECT_NE(requests.back().header("range"), "bytes=0-3145727");
}

TEST_F(BrokenStore, MixesNoTwoContents) {
  open();
  const std::string data(3 << 20, 'q');
  ASSERT_TRUE(store_->write("a", bytes_in(data)));
  server_.after = [&](const ServerRequest& request, ServerAnswer& answer) {
    if (request.method != "GET" || !request.header("if-match").empty()) return;
    answer.end = End::kCut;
    answer.sent_bytes = answer.body.size() / 2;
    // The next GET, which goes on, finds a new object.
    server_.before = [&, replaced = false](const ServerRequest& next) mutable -> std::optional<ServerAnswer> {
      if (next.method == "GET" && !std::exchange(replaced, true)) return fault_answer(412, "PreconditionFailed");
      return std::nullopt;
    };
  };
  EXPECT_EQ(code_of_read(data.size()), ErrorCode::kReplaced);
}

TEST_F(BrokenStore, MayNotAnswerWithOtherLengths) {
  open();
  ASSERT_TRUE(store_->write("a", bytes_in("0123456789")));
  const ServerAnswer range{.status = 206, .headers = {{"ETag", "\"1\""}, {"Content-Range", "bytes 0-9/10"}}};
  const auto answer = [&](const std::string& body, const std::string& length, End end = End::kWhole) {
    ServerAnswer changed = range;
    changed.body = body;
    changed.length = length;
    changed.end = end;
    return changed;
  };
  for (const ServerAnswer& wrong : {answer("01234", ""), answer("01234567890", ""), answer("01234", "none"),
                                    answer("01234567890", "none"), answer("0123456789", "", End::kEndless)}) {
    answer_before(1, "GET", wrong);
    EXPECT_EQ(code_of_read(10), ErrorCode::kUnsafe) << wrong.body << " " << wrong.length;
  }
  ServerAnswer elsewhere = answer("0123456789", "");
  elsewhere.headers[1].second = "bytes 1-10/20";
  answer_before(1, "GET", elsewhere);
  EXPECT_EQ(code_of_read(10), ErrorCode::kUnsafe);
}

TEST_F(BrokenStore, MayNotAnswerWithoutEnd) {
  open();
  answer_before(1, "GET", {.body = std::string(1 << 20, 'x'), .end = End::kEndless});
  const Result<ObjectPage> page = store_->list("", false);
  ASSERT_FALSE(page);
  EXPECT_EQ(page.error().code(), ErrorCode::kUnsafe);
  ServerAnswer heads;
  for (int i = 0; i < 1000; ++i) heads.headers.emplace_back("X-" + std::to_string(i), std::string(100, 'x'));
  answer_before(1, "GET", heads);
  EXPECT_EQ(store_->list("", false).error().code(), ErrorCode::kUnsafe);
  answer_before(1, "GET", {.status = 403, .body = std::string(1 << 20, 'x'), .end = End::kEndless});
  EXPECT_EQ(store_->list("", false).error().code(), ErrorCode::kUnavailable);
}

TEST_F(BrokenStore, ShowsDamageByItsChecksum) {
  open();
  ASSERT_TRUE(store_->write("a", bytes_in("0123456789")));
  server_.after = [](const ServerRequest& request, ServerAnswer& answer) {
    if (request.method == "GET") answer.body[3] = 'x';
  };
  EXPECT_EQ(code_of_read(10), ErrorCode::kCorrupt);
  EXPECT_EQ(store_->read_whole("a", 10).error().code(), ErrorCode::kCorrupt);
}

TEST_F(BrokenStore, GetsNoKeysOnAnotherHost) {
  HttpServer other([](const ServerRequest&) { return ServerAnswer(); });
  open();
  answer_before(1, "GET", {.status = 307, .headers = {{"Location", other.url() + "/bucket/a"}}});
  EXPECT_EQ(code_of_read(1), ErrorCode::kUnavailable);
  EXPECT_EQ(other.connection_count(), 0u);
}

TEST_F(BrokenStore, LosesTheAnswerOfAnAbsentWrite) {
  open();
  break_after(1, "PUT", End::kLost);
  const Result<WriteOutcome> outcome = store_->write("a", bytes_in("x"), WriteCondition::absent());
  ASSERT_TRUE(outcome) << outcome.error().what();
  EXPECT_EQ(outcome->kind, WriteOutcome::Kind::kRefused);
  EXPECT_TRUE(outcome->answer_was_lost);
}

TEST_F(BrokenStore, LosesAnswersOnAUsedConnection) {
  open();
  ASSERT_TRUE(store_->write("b", bytes_in("x")));  // the connection is kept
  break_after(1, "PUT", End::kLost);
  const Result<WriteOutcome> outcome = store_->write("a", bytes_in("x"), WriteCondition::absent());
  ASSERT_TRUE(outcome) << outcome.error().what();
  EXPECT_TRUE(outcome->kind == WriteOutcome::Kind::kWritten || outcome->answer_was_lost);
}

TEST_F(BrokenStore, LeavesAWriteUnknownAtTheLimit) {
  open(kNoTime);
  break_after(1, "PUT", End::kLost);
  const Result<WriteOutcome> outcome = store_->write("a", bytes_in("x"), WriteCondition::absent());
  ASSERT_TRUE(outcome) << outcome.error().what();
  EXPECT_EQ(outcome->kind, WriteOutcome::Kind::kUnknown);
  EXPECT_TRUE(outcome->why.has_value());
}

TEST_F(BrokenStore, RepeatsAConflictOfWrites) {
  open();
  answer_before(2, "PUT", fault_answer(409, "ConditionalRequestConflict"));
  const Result<WriteOutcome> outcome = store_->write("a", bytes_in("x"), WriteCondition::absent());
  ASSERT_TRUE(outcome) << outcome.error().what();
  EXPECT_EQ(outcome->kind, WriteOutcome::Kind::kWritten);
  EXPECT_FALSE(outcome->answer_was_lost);
}

TEST_F(BrokenStore, LosesTheAnswerOfACompletion) {
  open();
  const Result<std::string> id = store_->begin_upload("a");
  ASSERT_TRUE(id);
  const std::vector<std::span<const std::byte>> pieces{bytes_in("xy"), bytes_in("z")};
  const Result<UploadedPart> part = store_->upload_part("a", *id, 1, pieces);
  ASSERT_TRUE(part);
  break_after(1, "POST", End::kLost);
  const std::vector<UploadedPart> parts{*part};
  const Result<ObjectVersion> completed = store_->complete_upload("a", *id, parts, 3);
  ASSERT_TRUE(completed) << completed.error().what();
  EXPECT_EQ(completed->tag, store_->describe("a")->tag);
}

TEST_F(BrokenStore, DoesNotCompleteAnAbortedUpload) {
  open();
  ASSERT_TRUE(store_->write("a", bytes_in("old")));
  const std::vector<UploadedPart> parts{{1, "\"7\"", 4, 7}};
  const Result<ObjectVersion> completed = store_->complete_upload("a", "gone", parts, 4);
  ASSERT_FALSE(completed);
  EXPECT_EQ(completed.error().code(), ErrorCode::kNotFound);
}

TEST_F(BrokenStore, FailsInTheBodyOfASuccess) {
  open();
  const Result<std::string> id = store_->begin_upload("a");
  ASSERT_TRUE(id);
  const std::vector<std::span<const std::byte>> pieces{bytes_in("xyz")};
  const Result<UploadedPart> part = store_->upload_part("a", *id, 1, pieces);
  ASSERT_TRUE(part);
  ServerAnswer failure = fault_answer(200, "InternalError");
  answer_before(2, "POST", failure);
  const std::vector<UploadedPart> parts{*part};
  EXPECT_TRUE(store_->complete_upload("a", *id, parts, 3));
  answer_before(1, "POST", fault_answer(200, "InvalidPart"));
  EXPECT_FALSE(store_->complete_upload("a", *id, parts, 3));
}

TEST_F(BrokenStore, MayHaveNoFullChecksums) {
  server_.has_full_checksums = false;
  open();
  EXPECT_TRUE(store_->begin_upload("a"));
  EXPECT_EQ(server_.http().requests().back().header("x-amz-checksum-algorithm"), "CRC32");
}

TEST_F(BrokenStore, MayHaveNoRemovalOfBatches) {
  server_.removes_batches = false;
  open();
  const std::vector<std::string> keys{"a", "b"};
  for (const std::string& key : keys) ASSERT_TRUE(store_->write(key, bytes_in("x")));
  EXPECT_TRUE(store_->remove_all(keys));
  EXPECT_EQ(store_->list("", false)->objects.size(), 0u);
}

TEST_F(BrokenStore, ShowsIgnoredConditions) {
  server_.keeps_conditions = false;
  open();
  const Result<StoreConditions> conditions = probe_conditions(*store_, "p/");
  ASSERT_TRUE(conditions);
  EXPECT_FALSE(conditions->of_writes);
  EXPECT_EQ(check_conditions(*conditions, "s3://bucket").error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(store_->list("", false)->objects.size(), 0u);
}

TEST_F(BrokenStore, SetsTheClockByTheStore) {
  open();
  ServerAnswer skewed = fault_answer(403, "RequestTimeTooSkewed");
  skewed.headers.emplace_back("Date", "Sun, 06 Nov 1994 08:49:37 GMT");
  answer_before(1, "PUT", skewed);
  EXPECT_TRUE(store_->write("a", bytes_in("x")));
  EXPECT_EQ(server_.http().requests().back().header("x-amz-date").substr(0, 8), "19941106");
  answer_before(2, "PUT", skewed);
  EXPECT_FALSE(store_->write("a", bytes_in("x")));
}

TEST_F(BrokenStore, NamesTheRegionOfTheBucket) {
  open();
  ServerAnswer elsewhere = fault_answer(400, "AuthorizationHeaderMalformed");
  elsewhere.headers.emplace_back("x-amz-bucket-region", "eu-north-1");
  answer_before(1, "PUT", elsewhere);
  EXPECT_TRUE(store_->write("a", bytes_in("x")));
  EXPECT_NE(server_.http().requests().back().header("authorization").find("/eu-north-1/s3/"), std::string::npos);
}

TEST_F(BrokenStore, EndsWithoutProgress) {
  options_.http.stall = std::chrono::milliseconds(100);
  open(kNoTime);
  answer_before(1, "GET", {.end = End::kHang});
  EXPECT_EQ(code_of_read(1), ErrorCode::kUnavailable);
}

TEST_F(BrokenStore, IsLeftWhenTheFlagIsSet) {
  open();
  const auto stop = std::make_shared<os::StopFlag>();
  const std::shared_ptr<ObjectStore> stoppable = store_->with_stop(stop);
  answer_before(1, "GET", {.end = End::kHang});
  std::jthread setter([&] {
    server_.http().wait_for_requests(1);
    stop->set();
  });
  std::byte byte{};
  EXPECT_EQ(stoppable->read("a", 0, {&byte, 1}).error().code(), ErrorCode::kCancelled);
}

TEST_F(BrokenStore, ShowsNoKeyInErrors) {
  variables_["AWS_SESSION_TOKEN"] = "test-token";
  open(kNoTime);
  ServerAnswer denied = fault_answer(403, "SignatureDoesNotMatch");
  denied.body =
      "<Error><Code>SignatureDoesNotMatch</Code><Message>test-key and test-secret and test-token</Message></Error>";
  answer_before(1000, "PUT", denied);
  const Result<WriteOutcome> written = store_->write("a", bytes_in("x"));
  ASSERT_FALSE(written);
  const std::string text = written.error().what();
  for (const char* key : {"test-key", "test-secret", "test-token"})
    EXPECT_EQ(text.find(key), std::string::npos) << text;
  EXPECT_NE(text.find("SignatureDoesNotMatch"), std::string::npos) << text;
}

TEST_F(BrokenStore, ServesThreadsOverOldSockets) {
  open();
  constexpr int kThreads = 4;
  constexpr int kWrites = 20;
  std::atomic<int> failures{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kWrites; ++i) {
          const std::string key = std::to_string(t) + "-" + std::to_string(i);
          if (!store_->write(key, bytes_in(key)) || store_->read_whole(key, 100)->bytes != key) ++failures;
        }
      });
    }
  }
  EXPECT_EQ(failures.load(), 0);
  EXPECT_LE(server_.http().connection_count(), std::size_t{kThreads});
}

}  // namespace
}  // namespace cairn::storage
