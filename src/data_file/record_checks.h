// RecordChecks: checks records that have only a checksum of the whole, for reads of parts of the records.
//
// Stock torch, and torch.save, store one CRC per record. A reader has two ways to check a record:
// - A pass over many elements reports the CRC of each piece that it reads (add). When the pieces make up the record,
//   their combined CRC is compared. finish() reads the records whose pieces do not make them up.
// - A read of a single part asks first for a check of the whole record (check), which reads the record.
// Thread-safe.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "data_file/data_file.h"
#include "os/parallel.h"

namespace cairn::data_file {

class RecordChecks {
 public:
  // The stop flag outlives the object.
  explicit RecordChecks(const os::StopFlag& stop) : stop_(stop) {}

  // The bytes [begin, begin + length) of the record were read, and have this CRC. `file` outlives the object.
  // `stored.record_crc` is set.
  struct Piece {
    std::uint64_t begin = 0;
    std::uint64_t length = 0;
    std::uint32_t crc = 0;
  };
  // kCorrupt, with the key of the record's first piece, file and offset, if the piece completes the record and the
  // CRC differs.
  Result<void> add(const DataFile& file, std::string_view key, const StoredTensor& stored, const Piece& piece);

  // Reads the record of `stored` and compares its checksum, if the record has one and was not read by check() before.
  // kCorrupt with key, file and offset; kCancelled once the stop flag is set. Threads that ask for one record at a time
  // wait for the first of them. Memory: 4 MiB per thread.
  Result<void> check(const DataFile& file, std::string_view key, const StoredTensor& stored);

  // kAll: the records whose bytes the pieces do not cover exactly once, or not exactly a number of times.
  // kOverlapping: of these, only the records of which two pieces overlapped; the remaining records were read in part.
  enum class Which : std::uint8_t { kAll, kOverlapping };
  // After the last add(): checks the records as check() does, in several threads.
  Result<void> finish(Which which, std::size_t thread_count);

 private:
  // Memory: one node for each record that was read, and for each gap between its pieces.
  struct Record {
    std::string key;  // of the first piece
    std::uint64_t bytes = 0;
    std::uint32_t crc = 0;
    std::map<std::uint64_t, std::pair<std::uint64_t, std::uint32_t>> ranges = {};  // by begin: end and CRC; apart
    bool overlaps = false;
    bool is_checked = false;
    std::mutex reading = {};                      // held during the read of the whole record
    std::optional<std::uint32_t> whole_crc = {};  // of the bytes in the file; guarded by `reading`
  };
  using Place = std::pair<const DataFile*, std::uint64_t>;  // the file, and the offset of the record
  Record& record_at(const Place& place, std::string_view key, const StoredTensor& stored);
  static Result<void> compare(const Place& place, std::string_view key, const Record& record, std::uint32_t crc);
  Result<void> read_whole(const Place& place, std::string_view key, Record& record) const;
  Result<std::uint32_t> crc_of(const Place& place, std::uint64_t bytes) const;

  const os::StopFlag& stop_;
  std::mutex mutex_;  // of the map, and of the records except their last two members
  std::map<Place, Record> records_;
};

}  // namespace cairn::data_file
