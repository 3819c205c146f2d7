// PieceDelivery: checks the bytes of read pieces against the checksums of their records, and puts the elements into the
// targets of the reads.
//
// Thread-safe for different pieces.
#pragma once

#include <cairn/options.h>
#include <cairn/result.h>

#include <cstdint>
#include <span>
#include <vector>

#include "data_file/conversion_losses.h"
#include "data_file/element_sink.h"
#include "data_file/read_pieces.h"
#include "data_file/record_checks.h"
#include "os/parallel.h"

namespace cairn::data_file {

struct DeliveryOptions {
  Verify verify = Verify::kNeeded;
  // If set: gets the CRC of each piece of a record that has only a checksum of the whole and is not read whole. For
  // reads that stream; with Verify::kNeeded.
  RecordChecks* checks = nullptr;
  // If set: gets the losses of the conversions between floating-point dtypes, of the first `counted_reads` reads.
  ConversionLosses* losses = nullptr;
  std::size_t counted_reads = 0;
  // Gets the elements of the targets on devices; must be set if there are any.
  ElementSink* devices = nullptr;
};

// Checks the bytes read from a record: each block against the block's checksum, or the whole record against the
// record's checksum at the end. A record that is not read whole is left to the RecordChecks of the options.
class RecordCheck {
 public:
  // `bytes_scheduled`: of the record's bytes, those that the pieces of the read fetch.
  RecordCheck(const TensorRead& read, const DeliveryOptions& options, std::uint64_t bytes_scheduled);

  bool wanted() const { return by_block_ || whole_ || record_checks_ != nullptr; }
  // The bytes whose CRC report() expects; the last bytes of the record may be fewer.
  std::uint64_t step() const;
  // Reports the CRC of `length` bytes at offset `begin` of the record: a block, unless RecordChecks gets the CRC.
  // Each byte is reported once, by one thread.
  Result<void> report(std::uint64_t begin, std::uint64_t length, std::uint32_t crc);
  Result<void> finish() const;

 private:
  const TensorRead* read_;
  bool by_block_ = false;
  bool whole_ = false;
  RecordChecks* record_checks_ = nullptr;
  std::vector<std::uint32_t> seen_;
};

class PieceDelivery {
 public:
  // `pieces` are all pieces of `reads`. The reads outlive the object.
  PieceDelivery(const std::vector<TensorRead>& reads, const std::vector<ReadPiece>& pieces,
                const DeliveryOptions& options);

  // Checks the bytes, which are all bytes of the piece, converts them where they lie, and puts the elements into the
  // target. kCorrupt names key, file and offset of the checksum that differs. A wait for a device ends soon after
  // `stop` is set, with kCancelled.
  Result<void> deliver(const ReadPiece& piece, std::span<std::byte> bytes, const os::StopFlag& stop);
  // Only checks. A piece to be checked begins at a multiple of the checksum block's size.
  Result<void> check(const ReadPiece& piece, std::span<const std::byte> bytes);
  // For a caller that computes the CRCs of a piece itself.
  RecordCheck& record_of(const ReadPiece& piece) { return checks_[piece.read]; }
  // After all pieces: checks the records that have only a checksum of the whole.
  Result<void> finish() const;
  // After all pieces of one read.
  Result<void> finish(std::uint32_t read) const { return checks_[read].finish(); }

 private:
  Result<void> deliver_to_device(const TensorRead& read, std::int64_t begin, std::span<const std::byte> bytes,
                                 const os::StopFlag& stop);

  const std::vector<TensorRead>& reads_;
  const DeliveryOptions options_;
  std::vector<RecordCheck> checks_;  // by read
};

}  // namespace cairn::data_file
