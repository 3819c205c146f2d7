// Reads any bytes as a zip archive: for every directory, the payloads must lie inside the archive and must not overlap.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "decoding_bounds.h"
#include "format/zip/directory.h"

namespace zip_fuzz {

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const cairn::MemorySource archive(std::as_bytes(std::span(data, size)));
  const auto directory = [&] {
    const cairn::fuzz::DecodingBounds bounds(size);
    return cairn::zip::read_directory(archive);
  }();
  if (!directory) return 0;
  std::size_t payload_bytes = 0;
  for (const cairn::zip::DirectoryEntry& entry : directory->entries) {
    if (directory->find(entry.name) != &entry) std::abort();
    const auto offset = cairn::zip::payload_offset(archive, entry);
    if (offset && (*offset > size || entry.size > size - *offset)) std::abort();
    if (offset) payload_bytes += entry.size;
  }
  if (payload_bytes > size) std::abort();  // no byte lies in two records
  return 0;
}

}  // namespace zip_fuzz
