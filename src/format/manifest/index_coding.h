// The coding of one item in a trailer's index; docs/format.md has the bytes.
#pragma once

#include "format/manifest/trailer.h"
#include "format/manifest/varint.h"

#include <string>

namespace cairn::manifest {

// Integers, one varint each; how many is told elsewhere.
void append_extents(std::string& out, const Extents& extents);
Result<Extents> read_extents(CodedReader& reader, std::uint64_t dimensions);

// Fails with kInvalidArgument if the item contradicts itself: payload outside the item, a tensor's payload of another
// length than its box has, box outside the global shape.
Result<void> check_item(const TrailerItem& item);

// Appends the item; the one before it ended at `previous_end`, which is at most the item's offset.
void append_item(std::string& out, const TrailerItem& item, std::uint64_t previous_end);

// Reads one item into `item`, whose memory is used again. Fails with kCorrupt; all that it returns went through
// check_item.
Result<void> read_item(CodedReader& reader, std::uint64_t previous_end, TrailerItem& item);

}  // namespace cairn::manifest
