// TraceLine: a line of a trace file: an event of Chrome's trace format as a JSON object, with a comma and a newline.
#pragma once

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace cairn::events {

// JSON text, made in a buffer of its own and then appended to a string in few calls. In the header, so that the length
// of a constant text is a constant for the compiler. One thread at a time.
class JsonText {
 public:
  explicit JsonText(std::string& out) : out_(out) {}
  JsonText(const JsonText&) = delete;
  JsonText& operator=(const JsonText&) = delete;

  void put(std::string_view text) {
    if (text.size() > buffer_.size() - size_) return put_long(text);
    std::memcpy(&buffer_[size_], text.data(), text.size());
    size_ += text.size();
  }
  void put_number(std::uint64_t number) {
    if (kDigitsMax + 1 > buffer_.size() - size_) flush();  // the room of a point, too
    char* const begin = &buffer_[size_];
    size_ += static_cast<std::size_t>(std::to_chars(begin, begin + kDigitsMax, number).ptr - begin);
  }
  // In microseconds, with three decimals.
  void put_time(std::int64_t nanoseconds);
  // With quotes. Any bytes: those that are not UTF-8 become U+FFFD.
  void put_quoted(std::string_view text);
  void flush();

 private:
  static constexpr std::size_t kDigitsMax = 20;

  void put_long(std::string_view text);
  // The first character, which can't stand in JSON as it is, or may not. Returns its length in `text`.
  std::size_t put_unusual(std::string_view text);

  std::string& out_;
  std::size_t size_ = 0;
  std::array<char, 512> buffer_;  // the first `size_` bytes
};

// The members of an object are added in the order of the calls. The names of members need no escapes.
class TraceLine {
 public:
  // `phase`: "X" (a span), "i" (a moment), "M" (a name).
  TraceLine(std::string& out, std::string_view phase, std::string_view name) : json_(out) {
    json_.put("{\"ph\":\"");
    json_.put(phase);
    json_.put("\"");
    text("name", name);
  }
  TraceLine& number(std::string_view name, std::uint64_t number) {
    begin_member(name);
    json_.put_number(number);
    return *this;
  }
  // In microseconds, with three decimals.
  TraceLine& time(std::string_view name, std::int64_t nanoseconds) {
    begin_member(name);
    json_.put_time(nanoseconds);
    return *this;
  }
  TraceLine& text(std::string_view name, std::string_view text) {
    begin_member(name);
    json_.put_quoted(text);
    return *this;
  }
  // `json` is JSON text.
  TraceLine& value(std::string_view name, std::string_view json) {
    begin_member(name);
    json_.put(json);
    return *this;
  }
  // The members that follow are of the object "args".
  TraceLine& begin_args() {
    begin_member("args");
    json_.put("{");
    in_args_ = true;
    is_first_ = true;
    return *this;
  }
  void end() {
    json_.put(in_args_ ? "}},\n" : "},\n");
    json_.flush();
  }

 private:
  void begin_member(std::string_view name) {
    json_.put(is_first_ ? "\"" : ",\"");
    is_first_ = false;
    json_.put(name);
    json_.put("\":");
  }

  JsonText json_;
  bool in_args_ = false;
  bool is_first_ = false;  // of the arguments
};

}  // namespace cairn::events
