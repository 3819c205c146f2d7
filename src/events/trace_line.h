// TraceLine: a line of a trace file: an event of Chrome's trace format as a JSON object, with a comma and a newline.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn::events {

// The members of an object are added in the order of the calls. One thread at a time.
class TraceLine {
 public:
  // `phase`: "X" (a span), "i" (a moment), "M" (a name). The names of members need no escapes.
  TraceLine(std::string& out, std::string_view phase, std::string_view name);
  TraceLine& number(std::string_view name, std::uint64_t number);
  // In microseconds, with three decimals.
  TraceLine& time(std::string_view name, std::int64_t nanoseconds);
  // Any bytes: those that are not UTF-8 become U+FFFD.
  TraceLine& text(std::string_view name, std::string_view text);
  // `json` is JSON text.
  TraceLine& value(std::string_view name, std::string_view json);
  // The members that follow are of the object "args".
  TraceLine& begin_args();
  void end();

 private:
  void begin_member(std::string_view name);
  std::string& out_;
  bool in_args_ = false;
  bool is_first_ = false;  // of the arguments
};

}  // namespace cairn::events
