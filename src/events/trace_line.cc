#include "events/trace_line.h"

#include <array>
#include <charconv>
#include <cstddef>

#include "format/json/utf8.h"

namespace cairn::events {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr unsigned char kAsciiMax = 0x7F;
constexpr unsigned char kPrintableMin = 0x20;

void append_number(std::string& out, std::uint64_t number) {
  std::array<char, 24> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  out.append(digits.data(), end);
}

void append_escaped(std::string& out, char c) {
  constexpr std::string_view kHex = "0123456789abcdef";
  if (c == '"' || c == '\\') {
    out += '\\';
    out += c;
    return;
  }
  const auto byte = static_cast<unsigned char>(c);
  out += "\\u00";
  out += kHex[byte >> 4U];
  out += kHex[byte & 0xFU];
}

bool needs_escape(unsigned char byte) { return byte < kPrintableMin || byte == '"' || byte == '\\'; }

bool is_plain(unsigned char byte) { return byte <= kAsciiMax && !needs_escape(byte); }

void append_text(std::string& out, std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte > kAsciiMax) {
      const std::size_t length = json::utf8_length(text.substr(at));
      out += length == 0 ? kReplacement : text.substr(at, length);
      at += length == 0 ? 1 : length;
    } else if (needs_escape(byte)) {
      append_escaped(out, text[at++]);
    } else {
      std::size_t end = at + 1;
      while (end < text.size() && is_plain(static_cast<unsigned char>(text[end]))) ++end;
      out += text.substr(at, end - at);
      at = end;
    }
  }
}

}  // namespace

TraceLine::TraceLine(std::string& out, std::string_view phase, std::string_view name) : out_(out) {
  out_ += "{\"ph\":\"";
  out_ += phase;
  out_ += '"';
  text("name", name);
}

void TraceLine::begin_member(std::string_view name) {
  if (!is_first_) out_ += ',';
  is_first_ = false;
  out_ += '"';
  out_ += name;
  out_ += "\":";
}

TraceLine& TraceLine::number(std::string_view name, std::uint64_t number) {
  begin_member(name);
  append_number(out_, number);
  return *this;
}

TraceLine& TraceLine::time(std::string_view name, std::int64_t nanoseconds) {
  constexpr std::uint64_t kPerMicrosecond = 1000;
  constexpr std::uint64_t kHundred = 100;
  constexpr std::uint64_t kTen = 10;
  begin_member(name);
  const auto count = static_cast<std::uint64_t>(nanoseconds < 0 ? 0 : nanoseconds);
  append_number(out_, count / kPerMicrosecond);
  const std::uint64_t rest = count % kPerMicrosecond;
  out_ += '.';
  out_ += static_cast<char>('0' + rest / kHundred);
  out_ += static_cast<char>('0' + rest / kTen % kTen);
  out_ += static_cast<char>('0' + rest % kTen);
  return *this;
}

TraceLine& TraceLine::text(std::string_view name, std::string_view text) {
  begin_member(name);
  out_ += '"';
  append_text(out_, text);
  out_ += '"';
  return *this;
}

TraceLine& TraceLine::value(std::string_view name, std::string_view json) {
  begin_member(name);
  out_ += json;
  return *this;
}

TraceLine& TraceLine::begin_args() {
  begin_member("args");
  out_ += '{';
  in_args_ = true;
  is_first_ = true;
  return *this;
}

void TraceLine::end() { out_ += in_args_ ? "}},\n" : "},\n"; }

}  // namespace cairn::events
