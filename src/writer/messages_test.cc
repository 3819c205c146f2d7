#include "writer/messages.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "writer/testing/staged_sample.h"

namespace cairn::writer {
namespace {

// Decodes a message and encodes the result again; nullopt if the decoder refuses the message.
using Recode = std::function<std::optional<std::string>(std::string_view)>;

template <typename Decode>
Recode recode(Decode decode) {
  return [decode](std::string_view bytes) -> std::optional<std::string> {
    const auto message = decode(bytes);
    if (!message) {
      EXPECT_EQ(message.error().code(), ErrorCode::kCorrupt);
      return std::nullopt;
    }
    return encode(*message);
  };
}

// Of the coordinator of two ranks: a file of torch.save and a file of bytes.
StagedLayout plain_layout() {
  using data_file::PlainFile;
  StagedLayout layout;
  layout.id = 7;
  layout.arena_bytes = 8192;
  layout.files.push_back({0, {}, PlainFile{PlainFile::Form::kTorchSave, {1000, 12}}});
  layout.files.push_back({4096, {}, PlainFile{PlainFile::Form::kBytes, {5}}});
  layout.directory_files = {{{"model_0.pt", 1500}, {"config_0.json", 5}}, {}};
  return layout;
}

struct Example {
  const char* name;
  std::string bytes;
  Recode recode;
};

BeginMessage sample_begin() {
  StagedSample sample(3, 1000, {1, 3, 1});
  const commit::SaveTicket ticket{sample.identity(), true};
  BeginMessage begin{5, sample.request("/checkpoints/step 3", ticket), 6, 2};
  begin.request.arena.reset();
  begin.request.layout.reset();
  begin.request.durability = Durability::kBuffered;
  begin.request.direct_io = false;
  begin.request.trainer_waits = false;
  begin.request.umask = 0137;
  begin.request.notes = "{}";
  return begin;
}

std::vector<Example> examples() {
  HelloMessage hello;
  hello.cairn_version = "1.2.3";
  hello.trainer = 12345;
  hello.grace = std::chrono::seconds(30);
  hello.priority = {10, os::IoClass::kIdle, 7};
  ClaimMessage claim{4, {"/checkpoints", {{1, 2}, {3, 4}, 5}, 3, {false, 7u, true}}};
  claim.request.umask = 077;
  ProgressMessage progress;
  progress.saves.push_back({9, {commit::ProgressTracker::Phase::kWaiting, 100, 200}});
  const WrittenMessage written{3, 4000, {std::chrono::system_clock::now(), std::chrono::milliseconds(5)}};
  const auto relayout = [](std::string_view bytes) -> std::optional<std::string> {
    const auto message = decode_layout(bytes);
    return message ? std::optional(encode_layout(message->slot, message->layout).value()) : std::nullopt;
  };
  const auto renumber = [](std::string_view bytes) -> std::optional<std::string> {
    const auto number = decode_number(bytes);
    return number ? std::optional(encode_number(*number)) : std::nullopt;
  };
  const auto rereport = [](std::string_view bytes) -> std::optional<std::string> {
    const auto report = decode_report(bytes);
    return report ? std::optional(encode_report(*report)) : std::nullopt;
  };
  StagedSample sample(1);
  StagedSample follower(1, 1000, {1, 3, 0});
  const commit::SaveTicket ticket{sample.identity(), true};
  const auto layout = sample.request("/d", ticket).layout;
  return {
      {"hello", encode(hello), recode(decode_hello)},
      {"number", encode_number(300), renumber},
      {"start", encode(StartMessage{3, true}), recode(decode_start)},
      {"written", encode(written), recode(decode_written_message)},
      {"layout", encode_layout(3, *layout).value(), relayout},
      {"layout of a follower", encode_layout(0, *follower.request("/d", ticket).layout).value(), relayout},
      {"layout of plain files", encode_layout(1, plain_layout()).value(), relayout},
      {"claim", encode(claim), recode(decode_claim)},
      {"begin", encode(sample_begin()), recode(decode_begin)},
      {"failure", encode(OutcomeMessage{7, Error(ErrorCode::kNoSpace, "full").file("a").offset(5)}),
       recode(decode_outcome_message)},
      {"report", encode_report({77, {"a warning"}}), rereport},
      {"progress", encode(progress), recode(decode_progress)},
  };
}

TEST(Messages, EncodedAndDecodedAgain) {
  for (const Example& example : examples()) EXPECT_EQ(example.recode(example.bytes), example.bytes) << example.name;
  const OutcomeMessage ready{0, std::string("bytes\0and more", 14)};
  EXPECT_EQ(decode_outcome_message(encode(ready)).value().outcome.value(), *ready.outcome);
}

TEST(Messages, SayAllThatASaveNeeds) {
  const BeginMessage sent = sample_begin();
  const BeginMessage got = decode_begin(encode(sent)).value();
  EXPECT_EQ(got.save, 5u);
  EXPECT_EQ(got.arena, 6u);
  EXPECT_EQ(got.layout_slot, 2u);
  EXPECT_EQ(got.request.directory, "/checkpoints/step 3");
  EXPECT_EQ(got.request.ticket.identity.save_id, sent.request.ticket.identity.save_id);
  EXPECT_TRUE(got.request.ticket.fresh);
  EXPECT_EQ(got.request.place.rank, 1u);
  EXPECT_EQ(got.request.place.count, 3u);
  EXPECT_EQ(got.request.place.coordinator, 1u);
  EXPECT_EQ(got.request.names, sent.request.names);
  EXPECT_EQ(got.request.checkpoint_id, sent.request.checkpoint_id);
  EXPECT_EQ(got.request.notes, "{}");
  EXPECT_EQ(got.request.durability, Durability::kBuffered);
  EXPECT_EQ(got.request.thread_count, sent.request.thread_count);
  EXPECT_FALSE(got.request.direct_io);
  EXPECT_FALSE(got.request.trainer_waits);
  EXPECT_EQ(got.request.deadlines.sync, sent.request.deadlines.sync);
  EXPECT_EQ(got.request.umask, 0137u);
}

TEST(Messages, CarryTheCommitPlan) {
  const commit::RankPlace place{1, 3, 1};
  StagedSample sample(3, 1000, place);
  const commit::SaveTicket ticket{sample.identity(), false};
  const auto sent = sample.request("/d", ticket).layout;
  const auto got = decode_layout(encode_layout(2, *sent).value()).value().layout.commit_plan;
  ASSERT_TRUE(got);
  const commit::CommitRequest commit_request = got->commit_request(ticket, place, "/somewhere");
  const commit::CommitRequest expected = sent->commit_plan->commit_request(ticket, place, "/somewhere");
  EXPECT_EQ(commit_request.files, expected.files);
  EXPECT_EQ(commit_request.plan, expected.plan);
  EXPECT_EQ(commit_request.render().value(), expected.render().value());
  ASSERT_EQ(commit_request.files.size(), 3u);
  EXPECT_EQ(commit_request.files[2].at(0), commit::data_file_name(ticket, 2, 0));
  EXPECT_NE(commit_request.render()->find("/somewhere"), std::string::npos);
}

TEST(Messages, CarryPlainFiles) {
  const StagedLayout sent = plain_layout();
  const StagedLayout got = decode_layout(encode_layout(1, sent).value()).value().layout;
  EXPECT_EQ(got.directory_files, sent.directory_files);
  ASSERT_EQ(got.files.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(got.files[i].arena_offset, sent.files[i].arena_offset);
    EXPECT_EQ(got.files[i].plain, sent.files[i].plain);
  }
}

TEST(Messages, RefuseRanksOutOfRange) {
  BeginMessage begin = sample_begin();
  begin.request.place = {3, 3, 1};
  EXPECT_EQ(decode_begin(encode(begin)).error().code(), ErrorCode::kCorrupt);
  begin.request.place = {1, 3, 3};
  EXPECT_EQ(decode_begin(encode(begin)).error().code(), ErrorCode::kCorrupt);
  begin.request.place = {7, 1, 0};  // a rank that saves alone may have any number
  EXPECT_TRUE(decode_begin(encode(begin)));
}

TEST(Messages, RefusedIfCutOff) {
  for (const Example& example : examples()) {
    for (std::size_t length = 0; length < example.bytes.size(); ++length) {
      EXPECT_FALSE(example.recode(std::string_view(example.bytes).substr(0, length))) << example.name << " " << length;
    }
  }
}

TEST(Messages, RefusedWithTrailingBytes) {
  for (const Example& example : examples()) EXPECT_FALSE(example.recode(example.bytes + '\0')) << example.name;
}

TEST(Messages, DamageNeverGivesTheSameMessage) {
  for (const Example& example : examples()) {
    for (std::size_t bit = 0; bit < 8 * example.bytes.size(); ++bit) {
      std::string damaged = example.bytes;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
      const auto again = example.recode(damaged);
      if (again) EXPECT_NE(*again, example.bytes) << example.name << " " << bit;
    }
  }
}

TEST(Messages, HelloOfALaterVersionIsRead) {
  HelloMessage hello;
  hello.protocol_version = kProtocolVersion + 1;
  hello.cairn_version = "99";
  const auto understood = decode_hello(encode(hello) + "what a later version adds");
  ASSERT_TRUE(understood);
  EXPECT_EQ(understood->cairn_version, "99");
}

}  // namespace
}  // namespace cairn::writer
