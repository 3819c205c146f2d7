// JsonWriter: JSON text, one element per line down to a depth, the rest inline.
//
// One thread at a time. The caller closes what it opens; a key comes before every value inside an object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace cairn::cli {

class JsonWriter {
 public:
  void begin_object() { open('{'); }
  void end_object() { close('}'); }
  void begin_array() { open('['); }
  void end_array() { close(']'); }
  JsonWriter& key(std::string_view name);

  // Any bytes make valid JSON: one that is not UTF-8 becomes \udc80 to \udcff, as Python's surrogateescape has it. What
  // is not visible (visible.h) is escaped: JSON that is shown on a terminal must not act on it.
  void text(std::string_view text);
  void number(std::uint64_t number);
  void number(std::int64_t number);
  void boolean(bool flag);
  void null();
  // The text, or null if there is none.
  void text_or_null(const std::optional<std::string>& text);
  // The number, or null if there is none.
  template <typename Number>
  void number_or_null(const std::optional<Number>& number) {
    using Widest = std::conditional_t<std::is_signed_v<Number>, std::int64_t, std::uint64_t>;
    if (number) {
      this->number(static_cast<Widest>(*number));
    } else {
      null();
    }
  }

  std::string take() &&;

 private:
  void open(char bracket);
  void close(char bracket);
  void separate();
  void start_line(std::size_t depth);
  void append_quoted(std::string_view text);

  std::string json_;
  std::size_t depth_ = 0;
  bool is_first_ = true;    // of the innermost array or object
  bool after_key_ = false;  // the value stands on its key's line
};

}  // namespace cairn::cli
