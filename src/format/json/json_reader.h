// JsonReader: reads a JSON text (RFC 8259) from its begin to its end, value by value.
//
// Strict: UTF-8 without byte order mark, no comments, no trailing commas, no lone surrogates, no more than
// kJsonDepthMax nested values. allow_non_finite() is the only exception. The caller names the kind of each value, and
// any other kind is an error. Time and memory are proportional to the text. Every error is kCorrupt and names the
// offset in the file. One thread at a time; after an error the reader is not used again.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::json {

inline constexpr std::size_t kJsonDepthMax = 64;

class JsonReader {
 public:
  // `text` outlives the reader. `base` is the offset of `text` in its file.
  JsonReader(std::string_view text, std::uint64_t base) : text_(text), base_(base) {}

  Result<void> begin_object();
  // The next member's name, nullopt at the object's end. The caller reads the member's value before the next call.
  Result<std::optional<std::string>> next_name();
  Result<void> begin_array();
  // Whether an element follows. False at the array's end.
  Result<bool> next_element();

  Result<std::string> read_string();
  // A number without sign, fraction and exponent.
  Result<std::uint64_t> read_unsigned();
  // Any value, checked as strictly as a value that is read.
  Result<void> skip_value();
  // From now on skip_value() and read_value_text() take NaN, Infinity and -Infinity for numbers, as Python's json does.
  void allow_non_finite() { allows_non_finite_ = true; }
  // Whether the next value is null, which is then read.
  bool take_null();
  // The text of any value, checked by skip_value().
  Result<std::string_view> read_value_text();
  // The first character of the next value, behind white space; 0 at the text's end.
  char peek();
  // Only white space may follow the outermost value.
  Result<void> end();

  std::uint64_t offset() const { return base_ + position_; }
  // For an error about the text before the reader's position.
  Error damaged(std::string_view expected) const;

 private:
  void skip_space();
  bool take(char c);
  Result<bool> next_item(char close);
  Result<void> begin(char open);
  Result<void> append_escape(std::string& out);
  Result<std::uint32_t> read_hex4();
  Result<void> append_plain(std::string& out);
  Result<void> skip_number();
  Result<void> skip_word(std::string_view word);
  Result<void> skip_scalar();

  std::string_view text_;
  std::uint64_t base_;
  std::size_t position_ = 0;
  bool allows_non_finite_ = false;
  std::vector<bool> has_items_;  // per open object or array, the outermost first
};

}  // namespace cairn::json
