#include "format/json/json_string.h"

#include "format/json/utf8.h"

namespace cairn::json {

Result<void> append_json_string(std::string& out, std::string_view text) {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  constexpr unsigned char kFirstUnescaped = 0x20;
  out.push_back('"');
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x80) {
      const std::size_t length = utf8_length(text.substr(i));
      if (length == 0) return Error(ErrorCode::kInvalidArgument, "a name that is not UTF-8, as JSON needs it");
      out.append(text.substr(i, length));
      i += length;
      continue;
    }
    if (c < kFirstUnescaped) {
      out += "\\u00";
      out.push_back(kHexDigits[c >> 4]);
      out.push_back(kHexDigits[c & 0xF]);
    } else {
      if (c == '"' || c == '\\') out.push_back('\\');
      out.push_back(static_cast<char>(c));
    }
    ++i;
  }
  out.push_back('"');
  return {};
}

}  // namespace cairn::json
