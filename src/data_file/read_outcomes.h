// ReadOutcomes: tells the caller of a read that its last piece has ended, while other reads go on.
//
// Thread-safe for different pieces.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "data_file/piece_delivery.h"
#include "data_file/read_pieces.h"

namespace cairn::data_file {

class ReadOutcomes {
 public:
  using Ended = std::function<void(std::size_t read, const Result<void>& outcome)>;

  // `pieces` are all pieces of the reads. Tells at once the reads without pieces. `delivery` outlives the object.
  ReadOutcomes(std::size_t read_count, const std::vector<ReadPiece>& pieces, const PieceDelivery& delivery,
               const Ended& ended);

  // Called once for each piece. The first failure of a piece is the outcome of the read.
  void end(const ReadPiece& piece, const Result<void>& outcome);

 private:
  struct Read {
    std::size_t pieces_left = 0;
    std::optional<Error> failure = {};
  };

  const PieceDelivery& delivery_;
  const Ended& ended_;
  std::mutex mutex_;
  std::vector<Read> reads_;
};

}  // namespace cairn::data_file
