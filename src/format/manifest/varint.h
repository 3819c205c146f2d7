// Varints, and CodedReader, which reads varints, fixed-size integers and texts from a trailer index or a commit record.
//
// A varint is an unsigned integer in groups of seven bits, lowest group first. The top bit is set on all bytes but the
// last. A varint has at most ten bytes.
#pragma once

#include "core/little_endian.h"

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::manifest {

inline void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

// For CodedReader::fixed().
template <std::unsigned_integral T>
void append_fixed(std::string& out, T value) {
  char bytes[sizeof value];
  store_little_endian(reinterpret_cast<std::byte*>(bytes), value);
  out.append(bytes, sizeof value);
}

// The length of `text` as a varint, then `text`.
inline void append_text(std::string& out, std::string_view text) {
  append_varint(out, text.size());
  out += text;
}

// The number of texts as a varint, then each text by append_text().
inline void append_texts(std::string& out, std::span<const std::string> texts) {
  append_varint(out, texts.size());
  for (const std::string& text : texts) append_text(out, text);
}

// Reads forward through the caller's bytes, which must outlive the reader. Every step is checked and fails with
// kCorrupt.
class CodedReader {
 public:
  // `base` is the offset of `bytes` in their file. Errors name offsets in the file.
  CodedReader(std::span<const std::byte> bytes, std::uint64_t base) : bytes_(bytes), base_(base) {}

  // For a message between processes: errors name offsets in the message.
  explicit CodedReader(std::string_view message) : CodedReader(std::as_bytes(std::span(message)), 0) {}

  std::size_t position() const { return position_; }
  std::size_t left() const { return bytes_.size() - position_; }

  Result<std::uint64_t> varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && position_ < bytes_.size(); shift += 7) {
      const auto byte = std::to_integer<std::uint64_t>(bytes_[position_++]);
      if (shift == 63 && byte > 1) break;  // beyond 64 bits
      value |= (byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    return damaged("an integer that is cut off or too large");
  }

  Result<std::uint8_t> byte() {
    if (left() < 1) return damaged("the end where a byte should be");
    return std::to_integer<std::uint8_t>(bytes_[position_++]);
  }

  template <std::unsigned_integral T>
  Result<T> fixed() {
    if (left() < sizeof(T)) return damaged("the end where an integer should be");
    const T value = load_little_endian<T>(bytes_.data() + position_);
    position_ += sizeof(T);
    return value;
  }

  // A view into the bytes.
  Result<std::string_view> text(std::uint64_t length) {
    if (length > left()) return damaged("a text that is cut off");
    const std::string_view view(reinterpret_cast<const char*>(bytes_.data()) + position_, length);
    position_ += length;
    return view;
  }

  // A text written by append_text(), as a view into the bytes.
  Result<std::string_view> counted_text() {
    CAIRN_TRY_ASSIGN(const std::uint64_t length, varint());
    return text(length);
  }

  // The number of parts to follow. Each part takes at least one byte: a larger count than the bytes left is refused,
  // which keeps the caller's memory in proportion to the input.
  Result<std::uint64_t> count() {
    CAIRN_TRY_ASSIGN(const std::uint64_t count, varint());
    if (count > left()) return damaged("more parts than bytes");
    return count;
  }

  // The texts written by append_texts().
  Result<std::vector<std::string>> counted_texts() {
    CAIRN_TRY_ASSIGN(const std::uint64_t number, count());
    std::vector<std::string> texts;
    for (std::uint64_t i = 0; i < number; ++i) {
      CAIRN_TRY_ASSIGN(const std::string_view text, counted_text());
      texts.emplace_back(text);
    }
    return texts;
  }

  Error damaged(const char* what) const { return Error(ErrorCode::kCorrupt, what).offset(base_ + position_); }

 private:
  std::span<const std::byte> bytes_;
  std::uint64_t base_;
  std::size_t position_ = 0;
};

}  // namespace cairn::manifest
