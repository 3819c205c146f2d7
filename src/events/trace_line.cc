#include "events/trace_line.h"

#include <algorithm>
#include <array>

#include "format/json/utf8.h"

namespace cairn::events {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr unsigned char kAsciiMax = 0x7F;
constexpr unsigned char kPrintableMin = 0x20;

// By byte: whether the byte stands in JSON as it is.
constexpr std::array<bool, 256> kIsPlain = [] {
  std::array<bool, 256> plain{};
  for (std::size_t byte = kPrintableMin; byte <= kAsciiMax; ++byte) plain[byte] = byte != '"' && byte != '\\';
  return plain;
}();

}  // namespace

void JsonText::put_quoted(std::string_view text) {
  put("\"");
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && kIsPlain[static_cast<unsigned char>(text[end])]) ++end;
    put(text.substr(at, end - at));
    if (end == text.size()) break;
    at = end + put_unusual(text.substr(end));
  }
  put("\"");
}

std::size_t JsonText::put_unusual(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text.front());
  if (byte > kAsciiMax) {
    const std::size_t length = json::utf8_length(text);
    put(length == 0 ? kReplacement : text.substr(0, length));
    return length == 0 ? 1 : length;
  }
  constexpr std::string_view kHex = "0123456789abcdef";
  if (byte == '"' || byte == '\\') {
    put("\\");
    put(text.substr(0, 1));
  } else {
    put("\\u00");
    put(kHex.substr(byte >> 4U, 1));
    put(kHex.substr(byte & 0xFU, 1));
  }
  return 1;
}

void JsonText::put_long(std::string_view text) {
  flush();
  out_ += text;
}

void JsonText::flush() {
  out_.append(buffer_.data(), size_);
  size_ = 0;
}

void JsonText::put_time(std::int64_t nanoseconds) {
  constexpr std::size_t kDecimals = 3;
  constexpr std::int64_t kPerMicrosecond = 1000;
  if (nanoseconds < kPerMicrosecond) {  // with leading zeros
    const std::string digits = std::to_string(kPerMicrosecond + std::max<std::int64_t>(nanoseconds, 0));
    put("0.");
    return put(std::string_view(digits).substr(1));
  }
  put_number(static_cast<std::uint64_t>(nanoseconds));
  put(".");  // has room
  // The point and the decimals change places.
  char* const decimals = &buffer_[size_ - 1 - kDecimals];
  std::memmove(decimals + 1, decimals, kDecimals);
  *decimals = '.';
}

}  // namespace cairn::events
