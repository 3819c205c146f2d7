#include "events/trace_file.h"

#include <cairn/trace.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "events/operation.h"
#include "events/trace_line.h"
#include "events/trace_merge.h"
#include "format/json/json_reader.h"

namespace cairn::events {
namespace {

namespace fs = std::filesystem;

class TraceFiles : public testing::Test {
 protected:
  TraceFiles() {
    fs::create_directories("build");
    std::string pattern = (fs::current_path() / "build" / "trace-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
    directory_ = root_ / "a" / "b";
  }
  ~TraceFiles() override { fs::remove_all(root_); }

  static Event event(EventKind kind, std::uint64_t id, std::uint32_t rank = 0) {
    Event event;
    event.kind = kind;
    event.id = id;
    event.rank = rank;
    event.rank_count = 4;
    event.directory = "run/step-7";
    event.process_id = getpid();
    event.started = now();
    return event;
  }
  std::vector<std::string> lines() const {
    std::vector<std::string> lines;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) lines.push_back(line);
    }
    return lines;
  }
  std::size_t count(const std::string& text) const {
    const std::vector<std::string> all = lines();
    return static_cast<std::size_t>(std::count_if(
        all.begin(), all.end(), [&](const std::string& line) { return line.find(text) != std::string::npos; }));
  }

  fs::path root_;
  fs::path directory_;
};

TEST_F(TraceFiles, BeginIsWrittenAtOnce) {
  TraceFile trace(directory_.string(), "trainer");
  trace.add(event(EventKind::kBegun, 1));
  EXPECT_EQ(lines().front(), "[");
  EXPECT_EQ(count("\"name\":\"begun\""), 1u);
  EXPECT_EQ(count("run/step-7"), 1u);
}

TEST_F(TraceFiles, SpansOfAnOperation) {
  TraceFile trace(directory_.string(), "trainer");
  for (const EventKind kind : {EventKind::kBegun, EventKind::kPlanned, EventKind::kWritten, EventKind::kCommitted}) {
    trace.add(event(kind, 1));
  }
  for (const char* name : {"plan", "write", "commit", "save"}) {
    EXPECT_EQ(count(std::string("\"ph\":\"X\",\"name\":\"") + name + "\""), 1u) << name;
  }
}

TEST_F(TraceFiles, StepsOfAShortOperation) {
  TraceFile trace(directory_.string(), "trainer");
  Event step = event(EventKind::kBegun, 1);
  trace.add(step);
  step.kind = EventKind::kPlanned;
  step.started += std::chrono::milliseconds(19);
  trace.add(step);
  EXPECT_EQ(count("\"name\":\"plan\""), 0u);
  step.kind = EventKind::kCommitted;
  trace.add(step);
  EXPECT_EQ(count("\"name\":\"plan\""), 1u);
}

TEST_F(TraceFiles, StepsOfALongOperation) {
  TraceFile trace(directory_.string(), "trainer");
  Event step = event(EventKind::kBegun, 1);
  trace.add(step);
  step.kind = EventKind::kPlanned;
  step.started += std::chrono::milliseconds(19);
  trace.add(step);
  step.kind = EventKind::kStaged;
  step.started += std::chrono::milliseconds(2);
  trace.add(step);
  EXPECT_EQ(count("\"name\":\"plan\""), 1u);
  EXPECT_EQ(count("\"name\":\"stage\""), 1u);
  EXPECT_EQ(count("\"name\":\"save\""), 0u);
}

TEST_F(TraceFiles, BeginOfAnAsynchronousSave) {
  TraceFile trace(directory_.string(), "trainer");
  Event step = event(EventKind::kBegun, 1);
  step.asynchronous = true;
  trace.add(step);
  step.kind = EventKind::kStaged;
  trace.add(step);
  EXPECT_TRUE(lines().empty());
  trace.write();
  EXPECT_EQ(count("\"name\":\"begun\""), 1u);
  EXPECT_EQ(count("\"name\":\"stage\""), 1u);
  step.kind = EventKind::kCommitted;
  trace.add(step);
  EXPECT_EQ(count("\"name\":\"begun\""), 1u);
  EXPECT_EQ(count("\"name\":\"stage\""), 1u);
  EXPECT_EQ(count("\"name\":\"save\""), 1u);
}

TEST_F(TraceFiles, StepsOfAnOperationLeft) {
  TraceFile trace(directory_.string(), "trainer");
  trace.add(event(EventKind::kBegun, 1));
  trace.add(event(EventKind::kWritten, 1));
  trace.leave(1);
  EXPECT_EQ(count("\"name\":\"write\""), 1u);
  EXPECT_EQ(count("\"name\":\"save\""), 0u);
}

TEST_F(TraceFiles, LongTextsInALine) {
  TraceFile trace(directory_.string(), "trainer");
  Event begun = event(EventKind::kBegun, 1);
  const std::string name(5000, 'x');
  begun.directory = name + "/step-7";
  trace.add(begun);
  EXPECT_EQ(count("\"directory\":\"" + name + "/step-7\"}},"), 1u);
}

TEST_F(TraceFiles, LanesOfParallelOperations) {
  TraceFile trace(directory_.string(), "trainer");
  trace.add(event(EventKind::kBegun, 1));
  trace.add(event(EventKind::kBegun, 2));
  trace.add(event(EventKind::kFailed, 1));
  trace.add(event(EventKind::kBegun, 3));  // takes the lane of the first
  EXPECT_EQ(count("\"name\":\"thread_name\""), 4u);
  EXPECT_EQ(count("\"name\":\"begun\",\"ts\":"), 3u);
  trace.leave(2);
  trace.add(event(EventKind::kBegun, 4));
  EXPECT_EQ(count("\"name\":\"thread_name\""), 4u);
}

TEST_F(TraceFiles, EventsOfAnotherProcess) {
  TraceFile trace(directory_.string(), "trainer");
  Event written = event(EventKind::kWritten, 1);
  written.process_id = getpid() + 1;
  trace.add(written);
  EXPECT_FALSE(fs::exists(directory_));
  EXPECT_FALSE(trace.take_problem());
}

TEST_F(TraceFiles, TextsThatNeedEscapes) {
  TraceFile trace(directory_.string(), "trainer");
  Event failed = event(EventKind::kFailed, 1);
  failed.directory = "quote\" back\\slash\n\xFF \xC3\xA9";
  failed.cause = Error(ErrorCode::kNoSpace, "full");
  trace.add(failed);
  for (std::string line : lines()) {
    if (line == "[") continue;
    line.pop_back();
    json::JsonReader reader(line, 0);
    EXPECT_TRUE(reader.skip_value()) << line;
  }
  EXPECT_EQ(count("quote\\\" back\\\\slash\\u000a\xEF\xBF\xBD \xC3\xA9"), 1u + 1u);
}

TEST_F(TraceFiles, OneProblemOfAFolder) {
  std::ofstream(root_ / "a") << "in the way";
  TraceFile trace(directory_.string(), "trainer");
  trace.add(event(EventKind::kBegun, 1));
  trace.add(event(EventKind::kCommitted, 1));
  const auto problem = trace.take_problem();
  ASSERT_TRUE(problem);
  EXPECT_NE(problem->find("CAIRN_TRACE"), std::string::npos);
  EXPECT_FALSE(trace.take_problem());
}

TEST_F(TraceFiles, FileOfAForkedChild) {
  ASSERT_EQ(setenv("CAIRN_TRACE", directory_.c_str(), 1), 0);
  const pid_t child = fork();  // reads the environment anew
  if (child == 0) {
    { Operation::begin(EventOperation::kSave, {"step-1", 3, 4}).end(EventKind::kCommitted, 1); }
    const pid_t second = fork();
    if (second == 0) {
      { Operation::begin(EventOperation::kSave, {"step-2", 3, 4}).end(EventKind::kCommitted, 1); }
      _exit(0);
    }
    int status = 0;
    waitpid(second, &status, 0);
    _exit(status);
  }
  unsetenv("CAIRN_TRACE");
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const auto merged = merge_trace(directory_);
  ASSERT_TRUE(merged) << merged.error().what();
  EXPECT_EQ(merged->file_count, 2u);
  EXPECT_EQ(merged->event_count, 6u);
  EXPECT_TRUE(merged->warnings.empty());
}

TEST_F(TraceFiles, NoTraceInAFolder) {
  EXPECT_EQ(merge_trace(root_).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(merge_trace(root_ / "none").error().code(), ErrorCode::kNotFound);
}

std::string line_with(std::string_view text, std::int64_t time) {
  std::string out;
  TraceLine line(out, "X", text);
  line.time("ts", time).end();
  return out;
}

TEST(TraceLine, TimesWithThreeDecimals) {
  const std::vector<std::pair<std::int64_t, std::string>> cases = {{-5, "0.000"},
                                                                   {0, "0.000"},
                                                                   {7, "0.007"},
                                                                   {999, "0.999"},
                                                                   {1000, "1.000"},
                                                                   {1234567, "1234.567"},
                                                                   {1764000000123456789, "1764000000123456.789"}};
  for (const auto& [time, text] : cases)
    EXPECT_EQ(line_with("a", time), R"({"ph":"X","name":"a","ts":)" + text + "},\n");
}

TEST(TraceLine, TextsOfAnyLength) {
  for (std::size_t length = 0; length < 1200; ++length) {
    const std::string text(length, 'x');
    EXPECT_EQ(line_with(text, 1234567), R"({"ph":"X","name":")" + text + "\",\"ts\":1234.567},\n");
  }
}

std::string span(std::string_view name, int begin, int length, int thread) {
  return R"({"ph":"X","name":")" + std::string(name) + R"(","ts":)" + std::to_string(begin) +
         ".000,\"dur\":" + std::to_string(length) + ".000,\"pid\":9,\"tid\":" + std::to_string(thread) +
         R"(,"args":{"rank":2,"ranks":4}},)" + "\n";
}

TEST(TraceMerge, SortedTimesFromZero) {
  TraceMerge merge;
  merge.add("b", "[\n" + span("stage", 1500, 20, 1) + span("save", 1500, 500, 1));
  merge.add("a", "[\n" + span("write", 1000, 10, 1));
  const MergedTrace merged = std::move(merge).merge();
  EXPECT_EQ(merged.event_count, 3u);
  const std::size_t write = merged.json.find(R"("name":"write","ts":0.000,"dur":10.000,"pid":2,"tid":2)");
  const std::size_t save = merged.json.find(R"("name":"save","ts":500.000,"dur":500.000,"pid":2,"tid":1)");
  const std::size_t stage = merged.json.find(R"("name":"stage","ts":500.000,"dur":20.000,"pid":2,"tid":1)");
  ASSERT_NE(stage, std::string::npos) << merged.json;
  EXPECT_LT(write, save);
  EXPECT_LT(save, stage);
  json::JsonReader reader(merged.json, 0);
  EXPECT_TRUE(reader.skip_value() && reader.end());
}

TEST(TraceMerge, LinesCutOffByAKill) {
  const std::string whole = "[\n" + span("save", 1, 1, 1);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    TraceMerge merge;
    merge.add("a", std::string_view(whole).substr(0, length));
    const MergedTrace merged = std::move(merge).merge();
    const bool is_whole = length + 2 >= whole.size();  // without the comma and the newline
    EXPECT_EQ(merged.event_count, is_whole ? 1u : 0u) << length;
    EXPECT_EQ(merged.warnings.size(), length > 2 && !is_whole ? 1u : 0u) << length;
  }
}

TEST(TraceMerge, RankOfSeveralRanks) {
  TraceMerge merge;
  merge.add("a", R"({"ph":"i","name":"begun","ts":1.000,"pid":9,"tid":1,"s":"t","args":{"rank":0,"ranks":1}},)"
                 "\n" +
                     span("save", 1, 1, 1));
  const MergedTrace merged = std::move(merge).merge();
  EXPECT_EQ(merged.json.find("\"pid\":0"), std::string::npos);
  EXPECT_NE(merged.json.find("\"rank 2\""), std::string::npos);
}

TEST(TraceMerge, LinesOfOtherPrograms) {
  TraceMerge merge;
  merge.add("a", R"({"ph":"B","name":"x","ts":1.000,"pid":1,"tid":1,"args":{}},)"
                 "\n"
                 R"({"ph":"X","name":"x","ts":-1,"pid":1,"tid":1,"args":{}},)"
                 "\n");
  const MergedTrace merged = std::move(merge).merge();
  EXPECT_EQ(merged.event_count, 0u);
  ASSERT_EQ(merged.warnings.size(), 1u);
  EXPECT_EQ(merged.warnings[0], "a: left out 2 lines that are no events");
}

}  // namespace
}  // namespace cairn::events
