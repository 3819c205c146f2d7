// CheckedStorages: the bytes of the storages of a torch file, whole or in part, each compared with its CRC once.
//
// Thread-safe. Borrows the file, and what `find` refers to.
#pragma once

#include "core/byte_source.h"

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/seeded_hash.h"
#include "format/torch_file/archive_reader.h"

namespace cairn::torch_file {

// The name of a storage's record in a torch.save archive.
inline std::string storage_record_name(std::string_view key) { return "data/" + std::string(key); }

// kCorrupt if a record has another size than the pickle says.
Result<void> check_storage_bytes(std::string_view key, std::uint64_t expected, std::uint64_t actual);

// The place of a storage in its file.
struct StoragePlace {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::optional<std::uint32_t> crc;  // nullopt: the file has none
};

class CheckedStorages {
 public:
  using Find = std::function<Result<StoragePlace>(std::string_view key)>;
  CheckedStorages(const ByteSource& file, Find find) : file_(&file), find_(std::move(find)) {}

  // The place of a storage in an archive.
  static Result<StoragePlace> find_in(const ArchiveReader& archive, std::string_view key);

  Result<StoragePlace> find(std::string_view key) const { return find_(key); }
  // Fills `out` from byte `begin` of the storage on. The first call for a storage reads the whole storage, in blocks,
  // and compares it with its CRC. kCorrupt if the CRC differs, or if the range does not lie within the storage.
  Result<void> read(std::string_view key, std::uint64_t begin, std::span<std::byte> out) const;
  Result<std::vector<std::byte>> read_whole(std::string_view key) const;
  // Whether read() has filled bytes of the storage at this place of the file: any, or all by one call.
  bool was_read(std::uint64_t offset, bool whole) const;

 private:
  Result<void> check(std::string_view key, const StoragePlace& place) const;
  bool is_checked(std::uint64_t offset) const;
  void note_read(std::uint64_t offset, bool is_checked, bool is_whole) const;

  const ByteSource* file_;
  Find find_;
  mutable std::mutex mutex_;                                          // of all below
  mutable std::unordered_set<std::uint64_t, SeededHash> checked_;     // by offset
  mutable std::unordered_map<std::uint64_t, bool, SeededHash> read_;  // by offset: whether whole
};

}  // namespace cairn::torch_file
