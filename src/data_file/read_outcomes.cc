#include "data_file/read_outcomes.h"

namespace cairn::data_file {

ReadOutcomes::ReadOutcomes(std::size_t read_count, const std::vector<ReadPiece>& pieces, const PieceDelivery& delivery,
                           const Ended& ended)
    : delivery_(delivery), ended_(ended), reads_(read_count) {
  for (const ReadPiece& piece : pieces) ++reads_[piece.read].pieces_left;
  for (std::size_t read = 0; read < read_count; ++read) {
    if (reads_[read].pieces_left == 0) ended_(read, {});
  }
}

void ReadOutcomes::end(const ReadPiece& piece, const Result<void>& outcome) {
  Result<void> of_read;
  {
    const std::lock_guard lock(mutex_);
    Read& read = reads_[piece.read];
    if (!outcome && !read.failure) read.failure = outcome.error();
    if (--read.pieces_left > 0) return;
    if (read.failure) of_read = *read.failure;
  }
  if (of_read) of_read = delivery_.finish(piece.read);
  ended_(piece.read, of_read);
}

}  // namespace cairn::data_file
