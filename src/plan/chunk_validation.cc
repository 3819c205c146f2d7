// Chunks that lie within the tensor, do not overlap, and have as many elements as the tensor, cover the tensor. No
// search for holes is needed.
#include "plan/chunk_validation.h"

#include <string>

#include "plan/box_overlap.h"

namespace cairn::plan {
namespace {

class Validation {
 public:
  explicit Validation(const TensorChunks& chunks)
      : chunks_(chunks), dimensions_(chunks.shape.size()), count_(chunks.boxes.size() / (2 * dimensions_)) {}

  Result<void> run(Coverage coverage) const {
    for (std::size_t chunk = 0; chunk < count_; ++chunk) {
      if (!within_tensor(chunk)) return outside(chunk);
    }
    if (const auto pair = find_overlap(dimensions_, chunks_.boxes, count_)) return overlap(*pair);
    return coverage == Coverage::kWhole ? check_volume() : Result<void>();
  }

 private:
  std::span<const std::int64_t> offsets(std::size_t chunk) const {
    return chunks_.boxes.subspan(chunk * 2 * dimensions_, dimensions_);
  }
  std::span<const std::int64_t> sizes(std::size_t chunk) const {
    return chunks_.boxes.subspan((chunk * 2 + 1) * dimensions_, dimensions_);
  }

  bool within_tensor(std::size_t chunk) const {
    for (std::size_t d = 0; d < dimensions_; ++d) {
      if (offsets(chunk)[d] > chunks_.shape[d] - sizes(chunk)[d]) return false;
    }
    return true;
  }

  Result<void> check_volume() const {
    const std::int64_t expected = element_count(chunks_.shape).value();
    std::int64_t covered = 0;  // cannot overflow: the chunks lie within the tensor and do not overlap
    for (std::size_t chunk = 0; chunk < count_; ++chunk) {
      std::int64_t elements = 1;
      for (const std::int64_t size : sizes(chunk)) elements *= size;
      covered += elements;
    }
    if (covered == expected) return {};
    return Error(ErrorCode::kInvalidArgument, "the chunks do not make up the tensor")
        .key(chunks_.fqn)
        .expected(std::to_string(expected) + " elements of " + to_string(chunks_.shape))
        .actual(std::to_string(covered) + " in " + std::to_string(count_) + " chunks");
  }

  Error outside(std::size_t chunk) const {
    return at_rank(chunk, Error(ErrorCode::kInvalidArgument, "a chunk extends beyond its tensor"))
        .expected("within " + to_string(chunks_.shape))
        .actual(text_of(chunk));
  }
  Error overlap(const BoxPair& pair) const {
    return at_rank(pair.second, Error(ErrorCode::kInvalidArgument, "two chunks of the tensor overlap"))
        .expected("no element in common with " + described(pair.first))
        .actual(text_of(pair.second));
  }

  Error at_rank(std::size_t chunk, Error error) const {
    error = std::move(error).key(chunks_.fqn);
    return chunks_.ranks.empty() ? error : std::move(error).rank(chunks_.ranks[chunk]);
  }
  std::string text_of(std::size_t chunk) const {
    return to_string(Box::make(Extents(offsets(chunk)), Extents(sizes(chunk))).value());
  }
  std::string described(std::size_t chunk) const {
    return text_of(chunk) + (chunks_.ranks.empty() ? "" : " of rank " + std::to_string(chunks_.ranks[chunk]));
  }

  const TensorChunks& chunks_;
  std::size_t dimensions_;
  std::size_t count_;
};

}  // namespace

Result<void> validate_chunks(const TensorChunks& chunks, Coverage coverage) {
  if (chunks.shape.empty()) return {};
  return Validation(chunks).run(coverage);
}

}  // namespace cairn::plan
