// Conditional writes: a storage without a rename agrees on one of several writers by the version that a write replaces.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace cairn::storage {

// The condition of a write.
struct WriteCondition {
  enum class Kind : std::uint8_t {
    kNone,    // replaces an object
    kAbsent,  // If-None-Match: *
    kTag,     // If-Match: `tag`
  };
  Kind kind = Kind::kNone;
  std::string tag = {};

  static WriteCondition absent() { return {Kind::kAbsent}; }
  static WriteCondition of_tag(std::string tag) { return {Kind::kTag, std::move(tag)}; }
};

// The end of a write with a condition.
struct WriteOutcome {
  enum class Kind : std::uint8_t {
    kWritten,
    // 412, or 404 for a tag: the condition did not hold. After a lost answer this write itself may be the reason:
    // the caller looks at the object.
    kRefused,
    // The deadline passed without an answer: the write may have happened, or may still happen.
    kUnknown,
  };
  Kind kind = Kind::kWritten;
  std::string tag = {};           // of the new object, with kWritten
  bool answer_was_lost = false;   // an earlier try of this call got no answer
  std::optional<Error> why = {};  // with kUnknown
};

// A small file and the tag of its version, for conditions.
struct TaggedContent {
  std::string bytes;
  std::string tag;
};

}  // namespace cairn::storage
