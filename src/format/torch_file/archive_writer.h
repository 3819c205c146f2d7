// ArchiveWriter: a torch.save archive in memory: appends records, and the directory behind the last record.
//
// One thread at a time. Deterministic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/zip/record_writer.h"

namespace cairn::torch_file {

// The folder of the records in the archive.
inline constexpr std::string_view kArchivePrefix = "archive/";
// Storages begin at multiples of this number of bytes from the start of the archive, as torch.load(mmap=True) prefers.
inline constexpr std::uint64_t kStorageAlignment = 64;

class ArchiveWriter {
 public:
  // `alignment` of `bytes`, from the start of the archive; 1 for none.
  void add(std::string name, std::string_view bytes, std::uint64_t alignment = 1);
  std::string finish() &&;
  void reserve(std::size_t bytes) { archive_.reserve(bytes); }

 private:
  struct Entry {
    std::string name;
    std::uint64_t size = 0;
    std::uint64_t header_offset = 0;
    std::uint32_t crc = 0;
  };
  static zip::Record record_of(const Entry& entry) { return {entry.name, entry.size, entry.header_offset, entry.crc}; }
  std::byte* grow(std::size_t bytes);

  std::string archive_;
  std::vector<Entry> entries_;
};

}  // namespace cairn::torch_file
