// decode_metadata: the `.metadata` file of a DCP checkpoint as a Catalog.
//
// Pure; never runs code named by the file. Reads the metadata of torch 2.2 and later, and other producers' variants of
// the classes. Unknown attributes are kept. Memory is proportional to the file.
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

// kCorrupt if `bytes` is not a pickled Metadata, if a chunk does not lie in its tensor, or if a size, offset or length
// is negative or too large. kUnsupported for an unknown dtype. Names of files are not checked: the caller checks a name
// before opening the file. Errors name the key, or the offset in the pickle.
Result<DecodedMetadata> decode_metadata(std::span<const std::byte> bytes);

}  // namespace cairn::dcp
