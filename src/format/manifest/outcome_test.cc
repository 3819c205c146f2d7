#include "format/manifest/outcome.h"

#include <gtest/gtest.h>

#include "format/manifest/varint.h"

namespace cairn::manifest {
namespace {

ExceptionRecord sample_exception(std::size_t frame_count = 2) {
  ExceptionRecord record{"builtins.OSError", "the disk is tired", {}};
  for (std::size_t i = 0; i < frame_count; ++i) record.frames.push_back({"train.py", 10 + i, "step", "raise error"});
  return record;
}

Error failure(std::int64_t rank, ExceptionRecord record) {
  return Error(ErrorCode::kInvalidArgument, "no state").rank(rank).error_number(5).exception(std::move(record));
}

TEST(Outcome, CarriesTheExceptionOfEachRank) {
  const Error sent = Error::of_ranks({failure(1, sample_exception()), Error(ErrorCode::kNoSpace, "full").rank(2)});
  const Error got = decode_outcome(encode_outcome(sent)).error();
  ASSERT_EQ(got.causes().size(), 2u);
  const ExceptionRecord* const record = got.causes()[0].exception();
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(record->class_name, "builtins.OSError");
  EXPECT_EQ(record->text, "the disk is tired");
  ASSERT_EQ(record->frames.size(), 2u);
  EXPECT_EQ(record->frames[1].file, "train.py");
  EXPECT_EQ(record->frames[1].line, 11u);
  EXPECT_EQ(record->frames[1].function, "step");
  EXPECT_EQ(record->frames[1].text, "raise error");
  EXPECT_EQ(got.causes()[0].error_number(), 5);
  EXPECT_EQ(got.causes()[1].exception(), nullptr);
}

TEST(Outcome, CarriesTheIdOfAnEarlierSave) {
  const Error report = failure(1, sample_exception()).earlier_save("7:abc");
  const Error sent = Error::of_ranks({report, Error(ErrorCode::kNoSpace, "full").rank(2)});
  const Error got = decode_outcome(encode_outcome(sent)).error();
  EXPECT_EQ(got.causes()[0].earlier_save(), "7:abc");
  EXPECT_EQ(got.causes()[1].earlier_save(), "");
  EXPECT_EQ(decode_outcome(encode_outcome(report)).error().earlier_save(), "7:abc");
}

TEST(Outcome, CarriesASingleException) {
  const Error got = decode_outcome(encode_outcome(failure(0, sample_exception()))).error();
  ASSERT_NE(got.exception(), nullptr);
  EXPECT_EQ(got.exception()->text, "the disk is tired");
}

// Older versions put a pickle between the action and the key, and ended the message after the causes.
std::string outcome_of_an_older_version(std::string_view pickle) {
  std::string message = "n";
  for (const int number : {0, 0}) append_varint(message, static_cast<std::uint64_t>(number));  // code, errno
  for (const std::string_view text : {std::string_view("no state"), std::string_view(), pickle}) {
    append_text(message, text);
  }
  message.append(6, '\0');    // key, file, expected, actual, rank, offset: none
  append_varint(message, 0);  // causes
  return message;
}

TEST(Outcome, ReadsOldVersionsWithoutPickle) {
  const Error got = decode_outcome(outcome_of_an_older_version("cos\nsystem\n.")).error();
  EXPECT_EQ(got.message(), "no state");
  EXPECT_EQ(got.exception(), nullptr);
  EXPECT_EQ(encode_outcome(got).find("system"), std::string::npos);
}

TEST(Outcome, LimitsTheBytesOfExceptions) {
  std::vector<Error> failures;
  for (std::int64_t rank = 0; rank < 40; ++rank) {
    failures.push_back(failure(rank, {"builtins.OSError", std::string(100'000, 'x'), {}}));
  }
  const std::string message = encode_outcome(Error::of_ranks(failures));
  EXPECT_LE(message.size(), kExceptionsBytesMax + 40 * 64);
  const Error got = decode_outcome(message).error();
  ASSERT_EQ(got.causes().size(), 40u);
  EXPECT_NE(got.causes().front().exception(), nullptr);
  EXPECT_EQ(got.causes().back().exception(), nullptr);
}

TEST(Outcome, LimitsTheFramesOfAnException) {
  EXPECT_NE(decode_outcome(encode_outcome(failure(0, sample_exception(kExceptionFramesMax)))).error().exception(),
            nullptr);
  EXPECT_EQ(decode_outcome(encode_outcome(failure(0, sample_exception(kExceptionFramesMax + 1)))).error().exception(),
            nullptr);
}

TEST(Outcome, RefusesACutException) {
  const std::string message = encode_outcome(failure(0, sample_exception()));
  for (std::size_t length = message.size() - 20; length < message.size(); ++length) {
    EXPECT_EQ(decode_outcome(message.substr(0, length)).error().code(), ErrorCode::kCorrupt) << length;
  }
}

}  // namespace
}  // namespace cairn::manifest
