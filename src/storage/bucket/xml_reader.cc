#include "storage/bucket/xml_reader.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "core/whole_number.h"

namespace cairn::storage {
namespace {

bool is_xml_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
         c == '.' || c == ':';
}

// Characters of XML 1.0.
bool is_xml_character(std::uint32_t code_point) {
  if (code_point < 0x20) return code_point == 0x9 || code_point == 0xA || code_point == 0xD;
  return code_point < 0xD800 || (code_point >= 0xE000 && code_point < 0xFFFE) ||
         (code_point >= 0x10000 && code_point <= 0x10FFFF);
}

void append_code_point(std::string& out, std::uint32_t code_point) {
  const auto append = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (code_point < 0x80) {
    append(code_point);
  } else if (code_point < 0x800) {
    append(0xC0 | code_point >> 6);
    append(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    append(0xE0 | code_point >> 12);
    append(0x80 | (code_point >> 6 & 0x3F));
    append(0x80 | (code_point & 0x3F));
  } else {
    append(0xF0 | code_point >> 18);
    append(0x80 | (code_point >> 12 & 0x3F));
    append(0x80 | (code_point >> 6 & 0x3F));
    append(0x80 | (code_point & 0x3F));
  }
}

constexpr std::array<std::pair<std::string_view, char>, 5> kEntities{
    {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}}};
constexpr std::size_t kReferenceBytesMax = 12;  // "#x0010FFFF"

}  // namespace

Error XmlReader::damaged(std::string_view expected) const {
  return Error(ErrorCode::kUnsafe, "the answer of the store is not the XML of its protocol")
      .offset(position_)
      .expected(expected);
}

bool XmlReader::take(std::string_view token) {
  if (text_.substr(position_, token.size()) != token) return false;
  position_ += token.size();
  return true;
}

void XmlReader::skip_space() {
  while (position_ < text_.size() && is_xml_space(text_[position_])) ++position_;
}

Result<void> XmlReader::skip_comments() {
  for (skip_space(); take("<!--"); skip_space()) {
    const std::size_t end = text_.find("-->", position_);
    if (end == std::string_view::npos) return damaged("the end of a comment");
    position_ = end + 3;
  }
  return {};
}

Result<void> XmlReader::skip_attributes() {
  for (;;) {
    skip_space();
    if (position_ >= text_.size()) return damaged("the end of a tag");
    if (text_[position_] == '>' || text_[position_] == '/') return {};
    const std::size_t name = position_;
    while (position_ < text_.size() && is_name_character(text_[position_])) ++position_;
    if (position_ == name) return damaged("the name of an attribute");
    skip_space();
    if (!take("=")) return damaged("'='");
    skip_space();
    const bool is_double = take("\"");
    if (!is_double && !take("'")) return damaged("a quoted value");
    const std::size_t end = text_.find_first_of(is_double ? "\"<" : "'<", position_);
    if (end == std::string_view::npos || text_[end] == '<') return damaged("the end of a quoted value");
    position_ = end + 1;
  }
}

Result<XmlReader::Tag> XmlReader::read_tag() {
  Tag tag;
  if (!take("<")) return damaged("a tag");
  tag.is_end = take("/");
  const std::size_t name = position_;
  while (position_ < text_.size() && is_name_character(text_[position_])) ++position_;
  tag.name = text_.substr(name, position_ - name);
  if (tag.name.empty()) return damaged("the name of an element");  // also for <!DOCTYPE and <?
  if (tag.is_end) {
    skip_space();
  } else {
    CAIRN_TRY(skip_attributes());
    tag.is_empty = take("/");
  }
  if (!take(">")) return damaged("'>'");
  return tag;
}

Result<void> XmlReader::open(const Tag& tag) {
  if (names_.size() == kXmlDepthMax) return damaged("at most 16 nested elements");
  names_.push_back(tag.name);
  at_empty_ = tag.is_empty;
  return {};
}

Result<void> XmlReader::close(const Tag& tag) {
  if (names_.empty() || names_.back() != tag.name) return damaged("the end of the open element");
  names_.pop_back();
  return {};
}

Result<std::string_view> XmlReader::begin() {
  take("\xEF\xBB\xBF");
  skip_space();
  if (take("<?xml")) {
    const std::size_t end = text_.find("?>", position_);
    if (end == std::string_view::npos) return damaged("the end of the first line");
    position_ = end + 2;
  }
  CAIRN_TRY(skip_comments());
  CAIRN_TRY_ASSIGN(const Tag tag, read_tag());
  if (tag.is_end) return damaged("an element");
  CAIRN_TRY(open(tag));
  return tag.name;
}

Result<std::optional<std::string_view>> XmlReader::next_element() {
  if (names_.empty()) return damaged("an open element");
  if (std::exchange(at_empty_, false)) {
    names_.pop_back();
    return std::optional<std::string_view>();
  }
  CAIRN_TRY(skip_comments());
  CAIRN_TRY_ASSIGN(const Tag tag, read_tag());
  if (tag.is_end) {
    CAIRN_TRY(close(tag));
    return std::optional<std::string_view>();
  }
  CAIRN_TRY(open(tag));
  return std::optional(tag.name);
}

Result<void> XmlReader::append_reference(std::string& out) {
  const std::size_t end = text_.find(';', position_);
  if (end == std::string_view::npos || end - position_ > kReferenceBytesMax) return damaged("the end of a reference");
  const std::string_view name = text_.substr(position_, end - position_);
  if (name.substr(0, 1) == "#") {
    const bool is_hex = name.substr(0, 2) == "#x";
    const auto code_point = whole_number<std::uint32_t>(name.substr(is_hex ? 2 : 1), is_hex ? 16 : 10);
    if (!code_point || !is_xml_character(*code_point)) return damaged("the number of a character");
    append_code_point(out, *code_point);
  } else {
    const auto* const entity =
        std::find_if(kEntities.begin(), kEntities.end(), [&](const auto& known) { return known.first == name; });
    if (entity == kEntities.end()) return damaged("an entity of XML itself");
    out += entity->second;
  }
  position_ = end + 1;
  return {};
}

Result<void> XmlReader::append_text(std::string& out) {
  for (;;) {
    const std::size_t end = text_.find_first_of("<&", position_);
    if (end == std::string_view::npos) return damaged("the end of an element");
    out.append(text_.substr(position_, end - position_));
    position_ = end;
    if (!take("&")) return {};
    CAIRN_TRY(append_reference(out));
  }
}

Result<std::string> XmlReader::read_text() {
  std::string text;
  if (names_.empty()) return damaged("an open element");
  if (std::exchange(at_empty_, false)) {
    names_.pop_back();
    return text;
  }
  CAIRN_TRY(append_text(text));
  CAIRN_TRY_ASSIGN(const Tag tag, read_tag());
  if (!tag.is_end) return damaged("text without elements");
  CAIRN_TRY(close(tag));
  return text;
}

Result<void> XmlReader::skip() {
  if (names_.empty()) return damaged("an open element");
  const std::size_t outside = names_.size() - 1;
  std::string ignored;
  while (names_.size() > outside) {
    if (std::exchange(at_empty_, false)) {
      names_.pop_back();
      continue;
    }
    ignored.clear();
    CAIRN_TRY(append_text(ignored));
    CAIRN_TRY(skip_comments());
    if (position_ < text_.size() && text_[position_] != '<') continue;
    CAIRN_TRY_ASSIGN(const Tag tag, read_tag());
    CAIRN_TRY(tag.is_end ? close(tag) : open(tag));
  }
  return {};
}

Result<void> XmlReader::end() {
  CAIRN_TRY(skip_comments());
  if (!names_.empty() || position_ != text_.size()) return damaged("the end of the answer");
  return {};
}

}  // namespace cairn::storage
