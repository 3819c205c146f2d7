// The coding of an item in a trailer's index. docs/format.md has the bytes.
#pragma once

#include "format/manifest/trailer.h"
#include "format/manifest/varint.h"

#include <string>
#include <string_view>

namespace cairn::manifest {

// The extents as varints. The number of dimensions is not written: the caller of read_extents() passes the number.
void append_extents(std::string& out, const Extents& extents);
Result<Extents> read_extents(CodedReader& reader, std::uint64_t dimensions);

// The path of the key `fqn`, which is not empty: the number of elements, and for each element its length doubled, plus
// 1 for an integer. If the elements do not join to `fqn`, a 0 comes first, and the text of each element follows its
// length. Reading fails with kCorrupt.
void append_path_of(std::string& out, const Path& path, std::string_view fqn);
Result<Path> read_path_of(CodedReader& reader, std::string_view fqn);
Result<void> skip_path_of(CodedReader& reader);

// Fails with kInvalidArgument if the item contradicts itself: a payload outside the item, a tensor's payload that is
// longer or shorter than the elements of its box, or a box outside the global shape.
Result<void> check_item(const TrailerItem& item);

// Appends the item. `previous_end` is the end of the preceding item, at most the item's own offset.
void append_item(std::string& out, const TrailerItem& item, std::uint64_t previous_end);

// Reads one item into `item` and reuses the memory of `item`. Every returned item has passed check_item(). Fails with
// kCorrupt for bytes that do not decode, and like check_item().
Result<void> read_item(CodedReader& reader, std::uint64_t previous_end, TrailerItem& item);

}  // namespace cairn::manifest
