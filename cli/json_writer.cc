#include "json_writer.h"

#include <cairn/state_dict.h>
#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <utility>

#include "visible.h"

namespace cairn::cli {
namespace {

// Elements nested deeper share a line.

}  // namespace

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  append_quoted(name);
  json_ += ": ";
  after_key_ = true;
  return *this;
}

void JsonWriter::text(std::string_view text) {
  separate();
  append_quoted(text);
}

void JsonWriter::number(std::uint64_t number) {
  separate();
  json_ += std::to_string(number);
}

void JsonWriter::number(std::int64_t number) {
  separate();
  json_ += std::to_string(number);
}

void JsonWriter::number(double number) {
  const std::string digits = fmt::format("{}", number);
  if (!std::isfinite(number)) return text(std::isnan(number) ? "nan" : digits);
  separate();
  json_ += digits;
}

void JsonWriter::boolean(bool flag) {
  separate();
  json_ += flag ? "true" : "false";
}

void JsonWriter::null() {
  separate();
  json_ += "null";
}

// In JSON text, invisible characters other than white space stand only inside strings, where an escape means the same.
void JsonWriter::json(std::string_view json) {
  if (json.empty()) return null();
  separate();
  while (!json.empty()) {
    const auto character = first_character(json);
    const std::string_view bytes = json.substr(0, character ? character->bytes : 1);
    json.remove_prefix(bytes.size());
    if (bytes == "\n" || bytes == "\r" || bytes == "\t") {
      json_ += ' ';
    } else {
      append_visible(character ? std::optional(character->code_point) : std::nullopt, bytes);
    }
  }
}

void JsonWriter::text_or_null(const std::optional<std::string>& text) {
  if (text) {
    this->text(*text);
  } else {
    null();
  }
}

void JsonWriter::texts(std::span<const std::string> texts) {
  begin_array();
  for (const std::string& text : texts) this->text(text);
  end_array();
}

std::string JsonWriter::drain() { return std::exchange(json_, std::string()); }

std::string JsonWriter::take() && {
  json_ += '\n';
  return std::move(json_);
}

void JsonWriter::open(char bracket) {
  separate();
  json_ += bracket;
  ++depth_;
  is_first_ = true;
}

void JsonWriter::close(char bracket) {
  if (!is_first_ && depth_ <= line_depth_max_) start_line(depth_ - 1);
  --depth_;
  json_ += bracket;
  is_first_ = false;
}

void JsonWriter::separate() {
  if (std::exchange(after_key_, false) || depth_ == 0) return;
  const bool has_own_line = depth_ <= line_depth_max_;
  if (!std::exchange(is_first_, false)) json_ += has_own_line ? "," : ", ";
  if (has_own_line) start_line(depth_);
}

void JsonWriter::start_line(std::size_t depth) {
  json_ += '\n';
  json_.append(2 * depth, ' ');
}

// `code_point` is the character of `bytes`; nullopt: one byte that is not UTF-8.
void JsonWriter::append_visible(std::optional<std::uint32_t> code_point, std::string_view bytes) {
  const auto out = std::back_inserter(json_);
  if (!code_point) {
    fmt::format_to(out, "\\udc{:02x}", static_cast<unsigned char>(bytes[0]));
  } else if (is_visible(*code_point)) {
    json_ += bytes;
  } else if (*code_point < 0x10000) {
    fmt::format_to(out, "\\u{:04x}", *code_point);
  } else {
    const std::uint32_t rest = *code_point - 0x10000;
    fmt::format_to(out, "\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
  }
}

void JsonWriter::append_quoted(std::string_view text) {
  json_ += '"';
  while (!text.empty()) {
    const auto character = first_character(text);
    const std::string_view bytes = text.substr(0, character ? character->bytes : 1);
    text.remove_prefix(bytes.size());
    if (bytes == "\"" || bytes == "\\") json_ += '\\';
    append_visible(character ? std::optional(character->code_point) : std::nullopt, bytes);
  }
  json_ += '"';
}

}  // namespace cairn::cli
