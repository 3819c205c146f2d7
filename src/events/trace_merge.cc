#include "events/trace_merge.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>

#include "core/whole_number.h"
#include "events/trace_file.h"
#include "events/trace_line.h"
#include "events/work.h"
#include "format/json/json_reader.h"

namespace cairn {
namespace events {
namespace {

using json::JsonReader;

constexpr std::size_t kWarningsMax = 100;
constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 30U;
constexpr std::uint64_t kNanosecondsMax = std::uint64_t{1} << 62U;  // the year 2116
constexpr std::uint64_t kPerMicrosecond = 1000;

// Microseconds with three decimals, as TraceLine writes them.
Result<std::uint64_t> read_time(JsonReader& reader) {
  constexpr std::size_t kDecimals = 3;
  CAIRN_TRY_ASSIGN(const std::string_view text, reader.read_value_text());
  const std::size_t point = text.find('.');
  const auto whole = whole_number<std::uint64_t>(text.substr(0, point));
  if (point == std::string_view::npos) return whole == 0U ? Result<std::uint64_t>(0U) : reader.damaged("a time");
  const std::string_view decimals = text.substr(point + 1);
  const auto rest = whole_number<std::uint64_t>(decimals);
  if (!whole || !rest || decimals.size() != kDecimals || *whole > kNanosecondsMax / kPerMicrosecond) {
    return reader.damaged("a time");
  }
  return *whole * kPerMicrosecond + *rest;
}

struct Arguments {
  std::optional<std::string> name;
  std::optional<std::uint64_t> rank;
  std::uint64_t rank_count = 0;
};

Result<Arguments> read_arguments(std::string_view text) {
  JsonReader reader(text, 0);
  Arguments arguments;
  CAIRN_TRY(reader.begin_object());
  while (true) {
    CAIRN_TRY_ASSIGN(const std::optional<std::string> member, reader.next_name());
    if (!member) return arguments;
    if (*member == "name") {
      CAIRN_TRY_ASSIGN(arguments.name, reader.read_string());
    } else if (*member == "rank") {
      CAIRN_TRY_ASSIGN(arguments.rank, reader.read_unsigned());
    } else if (*member == "ranks") {
      CAIRN_TRY_ASSIGN(arguments.rank_count, reader.read_unsigned());
    } else {
      CAIRN_TRY(reader.skip_value());
    }
  }
}

void name_track(std::string& out, std::string_view kind, std::uint64_t rank, std::uint64_t thread,
                std::string_view name) {
  TraceLine line(out, "M", kind);
  line.number("ts", 0).number("pid", rank).number("tid", thread).begin_args().text("name", name).end();
}

}  // namespace

Result<TraceMerge::Line> TraceMerge::read_line(std::string_view text) {
  JsonReader reader(text, 0);
  Line line;
  CAIRN_TRY(reader.begin_object());
  while (true) {
    CAIRN_TRY_ASSIGN(const std::optional<std::string> member, reader.next_name());
    if (!member) break;
    if (*member == "ph") {
      CAIRN_TRY_ASSIGN(line.phase, reader.read_string());
    } else if (*member == "name") {
      CAIRN_TRY_ASSIGN(line.name, reader.read_string());
    } else if (*member == "ts") {
      CAIRN_TRY_ASSIGN(line.time, read_time(reader));
    } else if (*member == "dur") {
      CAIRN_TRY_ASSIGN(line.duration, read_time(reader));
    } else if (*member == "pid") {
      CAIRN_TRY_ASSIGN(line.process, reader.read_unsigned());
    } else if (*member == "tid") {
      CAIRN_TRY_ASSIGN(line.thread, reader.read_unsigned());
    } else if (*member == "s") {
      CAIRN_TRY_ASSIGN(line.scope, reader.read_string());
    } else if (*member == "args") {
      CAIRN_TRY_ASSIGN(line.args, reader.read_value_text());
    } else {
      return reader.damaged("a member of an event");
    }
  }
  CAIRN_TRY(reader.end());
  const bool is_known = line.phase == "X" || line.phase == "i" || line.phase == "M";
  if (!is_known || line.name.empty() || line.args.empty()) return reader.damaged("an event of Cairn");
  return line;
}

Result<void> TraceMerge::take(File& file, Line line) {
  CAIRN_TRY_ASSIGN(const Arguments arguments, read_arguments(line.args));
  file.process = line.process;
  if (line.phase == "M") {
    if (line.name == "thread_name" && arguments.name) file.threads[line.thread] = *arguments.name;
    return {};
  }
  const bool is_of_several = arguments.rank_count > 1;
  if (arguments.rank && (!file.rank || (is_of_several && !file.is_of_several))) file.rank = arguments.rank;
  file.is_of_several = file.is_of_several || is_of_several;
  file.lines.push_back(std::move(line));
  return {};
}

void TraceMerge::add(std::string_view name, std::string_view content) {
  File& file = files_.emplace_back();
  std::uint64_t left_out = 0;
  for (std::size_t begin = 0; begin < content.size();) {
    const std::size_t end = std::min(content.find('\n', begin), content.size());
    std::string_view text = content.substr(begin, end - begin);
    begin = end + 1;
    if (text.empty() || text == "[") continue;
    if (text.ends_with(',')) text.remove_suffix(1);
    Result<Line> line = read_line(text);
    const Result<void> taken = line ? take(file, *std::move(line)) : Result<void>(line.error());
    if (!taken) ++left_out;
  }
  if (left_out == 0 || merged_.warnings.size() >= kWarningsMax) return;
  merged_.warnings.push_back(std::string(name) + ": left out " + std::to_string(left_out) +
                             (left_out == 1 ? " line that is no event" : " lines that are no events"));
}

MergedTrace TraceMerge::merge() && {
  struct Placed {
    const Line* line;
    std::uint64_t rank;
    std::uint64_t thread;
  };
  std::vector<Placed> placed;
  std::string names;
  std::map<std::uint64_t, std::uint64_t> last_thread;  // by rank
  std::uint64_t first = UINT64_MAX;
  for (const File& file : files_) {
    const std::uint64_t rank = file.rank.value_or(0);
    if (!last_thread.contains(rank)) name_track(names, "process_name", rank, 0, "rank " + std::to_string(rank));
    std::uint64_t& last = last_thread[rank];
    std::map<std::uint64_t, std::uint64_t> threads;
    for (const Line& line : file.lines) {
      const auto [thread, is_new] = threads.try_emplace(line.thread, last + 1);
      if (is_new) {
        ++last;
        const auto named = file.threads.find(line.thread);
        const std::string name = named == file.threads.end() ? std::to_string(line.thread) : named->second;
        name_track(names, "thread_name", rank, last, name + ", process " + std::to_string(file.process));
      }
      placed.push_back({&line, rank, thread->second});
      first = std::min(first, line.time);
    }
  }
  // Of two spans with one begin the longer contains the other.
  std::stable_sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.line->time, b.line->duration) < std::pair(b.line->time, a.line->duration);
  });
  std::string& out = merged_.json;
  out = R"({"displayTimeUnit":"ms","otherData":{"nanoseconds_since_1970":")" +
        std::to_string(placed.empty() ? 0 : first) + "\"},\"traceEvents\":[\n" + names;
  for (const Placed& event : placed) {
    const Line& line = *event.line;
    TraceLine text(out, line.phase, line.name);
    text.time("ts", static_cast<std::int64_t>(line.time - first));
    if (line.phase == "X") text.time("dur", static_cast<std::int64_t>(line.duration));
    text.number("pid", event.rank).number("tid", event.thread);
    if (line.phase == "i") text.text("s", line.scope);
    text.value("args", line.args).end();
  }
  if (out.ends_with(",\n")) out.resize(out.size() - 2);
  out += "\n]}\n";
  merged_.file_count = files_.size();
  merged_.event_count = placed.size();
  return std::move(merged_);
}

}  // namespace events

Result<MergedTrace> merge_trace(const std::filesystem::path& directory) {
  namespace fs = std::filesystem;
  std::error_code failure;
  std::set<fs::path> paths;
  std::uint64_t bytes = 0;
  for (fs::directory_iterator it(directory, failure), end; !failure && it != end; it.increment(failure)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(events::kTracePrefix) || !name.ends_with(events::kTraceSuffix)) continue;
    if (!it->is_regular_file(failure) || failure) continue;
    bytes += it->file_size(failure);
    paths.insert(it->path());
  }
  if (failure) return Error::from_errno(failure.value(), "can't list the folder").file(directory.string());
  if (paths.empty()) {
    return Error(ErrorCode::kNotFound, "no trace in the folder: no process has written one (CAIRN_TRACE)")
        .file(directory.string());
  }
  if (bytes > events::kBytesMax) {
    return Error(ErrorCode::kInvalidArgument, "the traces are too large to be merged")
        .file(directory.string())
        .expected("at most " + std::to_string(events::kBytesMax) + " bytes")
        .actual(std::to_string(bytes) + " bytes");
  }
  const events::Work work = events::Work::begin(WorkKind::kMerge, directory.native());
  std::uint64_t bytes_merged = 0;
  events::TraceMerge merge;
  for (const fs::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    if (!file) return Error(ErrorCode::kUnavailable, "can't read a trace").file(path.string());
    merge.add(path.filename().string(), content);
    bytes_merged += content.size();
    work.set(bytes_merged, bytes);
  }
  MergedTrace merged = std::move(merge).merge();
  work.end(true);
  return merged;
}

}  // namespace cairn
