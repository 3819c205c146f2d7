// RecordChecks: checks records that have a single checksum, each record once, for reads of parts of the records.
//
// The records of torch.save archives (stock DCP, torch.save files) have one checksum per record. A part of such a
// record can be verified only by a read of the whole record.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "data_file/data_file.h"
#include "os/parallel.h"

namespace cairn::checkpointer {

// Thread-safe. The data files and the stop flag outlive the object.
class RecordChecks {
 public:
  explicit RecordChecks(const os::StopFlag& stop) : stop_(stop) {}

  // Reads the record of `stored` and compares its checksum, if the record has one and was not checked before. kCorrupt
  // with key, file and offset; kCancelled once the stop flag is set. Threads that ask for one record at a time wait for
  // the first of them. Memory: 4 MiB per thread.
  Result<void> check(const data_file::DataFile& file, const data_file::StoredTensor& stored, std::string_view key);

 private:
  struct Record {
    std::mutex mutex;
    std::optional<std::uint32_t> crc;  // of the bytes in the file
  };
  Result<std::uint32_t> crc_of(const data_file::DataFile& file, const data_file::StoredTensor& stored) const;

  const os::StopFlag& stop_;
  std::mutex mutex_;  // guards the map
  std::map<std::pair<const data_file::DataFile*, std::uint64_t>, std::unique_ptr<Record>> records_;
};

}  // namespace cairn::checkpointer
