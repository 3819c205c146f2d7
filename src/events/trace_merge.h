// TraceMerge: the files of several processes as one trace.
#pragma once

#include <cairn/result.h>
#include <cairn/trace.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn::events {

// One thread at a time.
class TraceMerge {
 public:
  // A file's content: any bytes. `name` is for the warnings. A line that is no event is left out, with a warning.
  void add(std::string_view name, std::string_view content);
  MergedTrace merge() &&;

 private:
  struct Line {
    std::string phase;
    std::string name;
    std::uint64_t time = 0;      // in nanoseconds since 1970
    std::uint64_t duration = 0;  // in nanoseconds
    std::uint64_t process = 0;
    std::uint64_t thread = 0;
    std::string scope;
    std::string args;  // an object
  };
  // A process, which may be a rank's trainer or its writer.
  struct File {
    std::uint64_t process = 0;
    std::optional<std::uint64_t> rank;  // of the first event of several ranks, or of the first event
    bool is_of_several = false;
    std::map<std::uint64_t, std::string> threads;  // names by number
    std::vector<Line> lines;
  };
  static Result<Line> read_line(std::string_view text);
  static Result<void> take(File& file, Line line);

  std::vector<File> files_;
  MergedTrace merged_;
};

}  // namespace cairn::events
