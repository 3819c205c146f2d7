// decode_metadata: the `.metadata` file of a DCP checkpoint as a Catalog.
//
// Pure; never runs anything that the file says. Reads what torch 2.2 and later write, and what other producers make of
// the same classes; attributes that it does not know are kept. Memory is proportional to the file.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstddef>
#include <span>

namespace cairn::dcp {

struct DecodedMetadata {
  Catalog catalog;
  std::size_t pickle_bytes = 0;  // up to and including the pickle's STOP; a commit record may follow
};

// kCorrupt if `bytes` is not such a pickle, a chunk does not lie in its tensor, or a size, offset or length is negative
// or too large; kUnsupported for a dtype that we do not know. Names of files are given as they are found: whoever opens
// one checks it first. Errors name the key, or the offset in the pickle.
Result<DecodedMetadata> decode_metadata(std::span<const std::byte> bytes);

}  // namespace cairn::dcp
