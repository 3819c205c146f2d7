// JsonWriter: JSON text, an element per line down to a depth, deeper elements inline; or all in a line.
//
// One thread at a time. The caller closes every opened object and array; inside an object a key precedes every value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace cairn::cli {

class JsonWriter {
 public:
  enum class Form : std::uint8_t { kLines, kOneLine };
  explicit JsonWriter(Form form = Form::kLines) : line_depth_max_(form == Form::kLines ? kLineDepthMax : 0) {}

  void begin_object() { open('{'); }
  void end_object() { close('}'); }
  void begin_array() { open('['); }
  void end_array() { close(']'); }
  JsonWriter& key(std::string_view name);

  // Any bytes make valid JSON: a byte that is not UTF-8 becomes \udc80 to \udcff, as by Python's surrogateescape.
  // Invisible characters (visible.h) are escaped: JSON shown on a terminal must not control the terminal.
  void text(std::string_view text);
  void number(std::uint64_t number);
  void number(std::int64_t number);
  // The shortest text with the value of `number`. NaN and infinities, which JSON lacks, become the texts "nan", "inf"
  // and "-inf".
  void number(double number);
  void boolean(bool flag);
  void null();
  // A value that is JSON text already; "" becomes null. Invisible characters are escaped.
  void json(std::string_view json);
  void texts(std::span<const std::string> texts);  // an array
  // Writes the text, or null if the text is missing.
  void text_or_null(const std::optional<std::string>& text);
  // Writes the number, or null if the number is missing.
  template <typename Number>
  void number_or_null(const std::optional<Number>& number) {
    using Widest = std::conditional_t<std::is_signed_v<Number>, std::int64_t, std::uint64_t>;
    if (number) {
      this->number(static_cast<Widest>(*number));
    } else {
      null();
    }
  }

  // The text since the last call, to be printed before the rest is written.
  std::string drain();
  std::string take() &&;

 private:
  static constexpr std::size_t kLineDepthMax = 2;

  void open(char bracket);
  void close(char bracket);
  void separate();
  void start_line(std::size_t depth);
  void append_quoted(std::string_view text);
  void append_visible(std::optional<std::uint32_t> code_point, std::string_view bytes);

  std::string json_;
  std::size_t line_depth_max_;
  std::size_t depth_ = 0;
  bool is_first_ = true;    // of the innermost array or object
  bool after_key_ = false;  // the next value follows its key on the line
};

}  // namespace cairn::cli
