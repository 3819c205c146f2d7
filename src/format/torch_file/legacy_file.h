// Legacy file: the format of torch.save before torch 1.6, still written by `_use_new_zipfile_serialization=False`.
//
// A sequence of pickles without padding: a magic number, the protocol version 1001, facts about the writing host, the
// object, and the list of the storages' keys; then for each key the number of elements (8 bytes, little endian) and the
// elements, little endian. The format has no checksums. Pure and inert.
#pragma once

#include "core/byte_source.h"

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/seeded_hash.h"
#include "format/pickle/graph.h"

namespace cairn::torch_file {

// The elements of a storage: a range within the file.
struct LegacyStorage {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct LegacyFile {
  std::vector<std::byte> pickled;    // the pickle of the object; `graph` refers to these bytes
  std::uint64_t pickled_offset = 0;  // of the pickle in the file
  pickle::Graph graph;
  std::unordered_map<std::string, LegacyStorage, SeededHash> storages;  // by key
};

// The number of bytes that begins_legacy_file() needs.
inline constexpr std::size_t kLegacyMagicBytes = 32;
// Whether a file that begins with `first_bytes` is a legacy file.
bool begins_legacy_file(std::span<const std::byte> first_bytes);

// kCorrupt for damage, and for a file that was cut short; kUnsupported for a file that only code can read, for pickles
// of more than 1 GiB, and for bytes behind the last storage.
Result<LegacyFile> read_legacy_file(const ByteSource& file);

}  // namespace cairn::torch_file
