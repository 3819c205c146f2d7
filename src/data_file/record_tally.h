// RecordTally: checks records that are read piece by piece and have only a checksum of the whole.
//
// Stock torch, and torch.save, store one CRC per record. A reader that streams reports the CRC of each piece; the tally
// puts neighbouring pieces together. Thread-safe.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data_file/data_file.h"

namespace cairn::data_file {

class RecordTally {
 public:
  // The bytes [begin, begin + length) of the record were read, and have this CRC. `file` outlives the tally.
  // `stored.record_crc` is set.
  struct Piece {
    std::uint64_t begin = 0;
    std::uint64_t length = 0;
    std::uint32_t crc = 0;
  };
  Result<void> add(const DataFile& file, std::string_view key, const StoredTensor& stored, const Piece& piece);

  // The records that the pieces do not cover exactly once, or not exactly a number of times: their bytes are unchecked.
  // kOverlapping: only the records of which two pieces overlapped. The remaining records were read in part.
  enum class Which : std::uint8_t { kAll, kOverlapping };
  struct Unchecked {
    const DataFile* file;
    StoredTensor stored;  // only the fields of the record
    std::string key;      // of the first piece
  };
  std::vector<Unchecked> unchecked(Which which) const;

 private:
  // Memory: one node for each record that was read, and for each gap between its pieces.
  struct Record {
    std::string key;  // of the first piece
    std::uint64_t bytes = 0;
    std::uint32_t crc = 0;
    std::map<std::uint64_t, std::pair<std::uint64_t, std::uint32_t>> ranges;  // by begin: end and CRC; apart
    bool overlaps = false;
    bool is_checked = false;
  };
  using Place = std::pair<const DataFile*, std::uint64_t>;  // the file, and the offset of the record
  static Result<void> judge(const Place& place, Record& record, std::uint32_t crc);

  mutable std::mutex mutex_;
  std::map<Place, Record> records_;
};

}  // namespace cairn::data_file
