// XmlReader: reads the XML of an object store's answer, element by element.
//
// The part of XML that stores send: elements, attributes, which are skipped, text, the five named entities and numbered
// characters. A document type, an entity of the answer's own, a processing instruction after the first line and CDATA
// are refused. No more than kXmlDepthMax nested elements. Time and memory are proportional to the text. Every error is
// kUnsafe. One thread at a time; after an error the reader is not used again.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::storage {

inline constexpr std::size_t kXmlDepthMax = 16;

class XmlReader {
 public:
  // `text` outlives the reader.
  explicit XmlReader(std::string_view text) : text_(text) {}

  // Opens the outermost element, and returns its name.
  Result<std::string_view> begin();
  // Opens the next element inside of the open one, and returns its name; nullopt if the open element has none left,
  // which is then closed. Text between the elements must be space.
  Result<std::optional<std::string_view>> next_element();
  // The text of the open element, which has no elements inside. Closes it.
  Result<std::string> read_text();
  // Closes the open element with all inside.
  Result<void> skip();
  // Only space may follow the outermost element.
  Result<void> end();

 private:
  struct Tag {
    std::string_view name;
    bool is_end = false;    // </name>
    bool is_empty = false;  // <name/>
  };

  Error damaged(std::string_view expected) const;
  bool take(std::string_view token);
  void skip_space();
  Result<void> skip_comments();  // and space
  Result<Tag> read_tag();
  Result<void> skip_attributes();
  Result<void> open(const Tag& tag);
  Result<void> close(const Tag& tag);
  Result<void> append_reference(std::string& out);
  // Appends text up to the next '<'.
  Result<void> append_text(std::string& out);

  std::string_view text_;
  std::size_t position_ = 0;
  std::vector<std::string_view> names_;  // of the open elements, the outermost first
  bool at_empty_ = false;                // the innermost open element is <name/>
};

}  // namespace cairn::storage
