#include "format/torch_checkpointing/shard_pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace cairn::torch_checkpointing {
namespace {

using Kind = Placement::Kind;
using Numbers = std::vector<std::int64_t>;

Mesh grid(const Extents& shape) {
  Mesh mesh{shape, {}};
  const std::int64_t count = *element_count(shape);
  for (std::int64_t i = 0; i < count; ++i) mesh.places.emplace(static_cast<std::uint32_t>(i), i);
  return mesh;
}

MeshSharding sharding_of(Extents shape, std::vector<Placement> placements) {
  return {std::move(shape), DType::kFloat32, 0, std::move(placements)};
}

Result<LocalPieces> pieces_of(const MeshSharding& sharding, const Mesh& mesh, std::uint32_t rank) {
  ByteBudget budget(0);
  return local_pieces(sharding, mesh, rank, budget);
}

// The model: torch.chunk() of a list of elements, in ranges of one size.
Numbers chunk(const Numbers& elements, std::int64_t count, std::int64_t index) {
  const auto length = static_cast<std::int64_t>(elements.size());
  const std::int64_t step = (length + count - 1) / count;
  const std::int64_t begin = std::min(step * index, length);
  const std::int64_t end = std::min(step * (index + 1), length);
  return {elements.begin() + begin, elements.begin() + end};
}

// As torch's _StridedShard splits a list: in `factor` ranges, and a chunk of each.
Numbers strided_chunk(const Numbers& elements, std::int64_t factor, std::int64_t count, std::int64_t index) {
  Numbers out;
  for (std::int64_t i = 0; i < factor; ++i) {
    const Numbers part = chunk(chunk(elements, factor, i), count, index);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

// The elements of dimension `dim` in the pieces, in the order of the rank's tensor: of a tensor with one dimension.
Numbers elements_of(const LocalPieces& local) {
  Numbers out(static_cast<std::size_t>(local.local_shape[0]), -1);
  for (const BoxSharding::Piece& piece : local.pieces) {
    for (std::int64_t i = 0; i < piece.box.sizes()[0]; ++i) {
      out[static_cast<std::size_t>(piece.local_offsets[0] + i)] = piece.box.offsets()[0] + i;
    }
  }
  return out;
}

TEST(LocalPieces, OfUnevenShardsMayBeEmpty) {
  const Mesh mesh = grid({4});
  const MeshSharding sharding = sharding_of({5, 3}, {{Kind::kShard, 0, 1}});
  const std::vector<Extents> shapes = {{2, 3}, {2, 3}, {1, 3}, {0, 3}};
  for (std::uint32_t rank = 0; rank < shapes.size(); ++rank) {
    const Result<LocalPieces> local = pieces_of(sharding, mesh, rank);
    ASSERT_TRUE(local) << local.error().what();
    EXPECT_EQ(local->local_shape, shapes[rank]);
    EXPECT_EQ(local->pieces.size(), rank == 3 ? 0U : 1U);
  }
}

TEST(LocalPieces, OfFsdpWithTensorParallel) {
  const Mesh mesh = grid({2, 2});
  const MeshSharding sharding = sharding_of({8, 8}, {{Kind::kStridedShard, 0, 2}, {Kind::kShard, 0, 1}});
  const Numbers first_rows = {0, 4, 2, 6};
  for (std::uint32_t rank = 0; rank < first_rows.size(); ++rank) {
    const Result<LocalPieces> local = pieces_of(sharding, mesh, rank);
    ASSERT_TRUE(local) << local.error().what();
    ASSERT_EQ(local->pieces.size(), 1U);
    EXPECT_EQ(local->pieces[0].box.offsets(), (Extents{first_rows[rank], 0}));
    EXPECT_EQ(local->pieces[0].box.sizes(), (Extents{2, 8}));
  }
}

TEST(LocalPieces, OfStridedShardsAloneAreSeveral) {
  const Result<LocalPieces> local =
      pieces_of(sharding_of({9, 4}, {{Kind::kStridedShard, 0, 2}, {Kind::kShard, 1, 1}}), grid({4, 2}), 1);
  ASSERT_TRUE(local) << local.error().what();
  EXPECT_EQ(local->local_shape, (Extents{3, 2}));
  ASSERT_EQ(local->pieces.size(), 2U);
  EXPECT_EQ(to_string(local->pieces[0].box), "[0, 2) x [2, 4)");
  EXPECT_EQ(to_string(local->pieces[1].box), "[5, 6) x [2, 4)");
  EXPECT_EQ(local->pieces[1].local_offsets, (Extents{2, 0}));
}

TEST(LocalPieces, OfAReplicaAreTheWholeTensor) {
  const Result<LocalPieces> local = pieces_of(sharding_of({}, {{Kind::kReplicate, 0, 1}}), grid({3}), 2);
  ASSERT_TRUE(local) << local.error().what();
  ASSERT_EQ(local->pieces.size(), 1U);
  EXPECT_EQ(local->pieces[0].box.element_count(), 1);
}

TEST(LocalPieces, EqualAModelForRandomMeshes) {
  std::mt19937 random(20261128);
  const auto number = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
  for (int round = 0; round < 2000; ++round) {
    const std::int64_t length = number(0, 40);
    Extents shape(static_cast<std::size_t>(number(1, 3)), 0);
    for (std::size_t i = 0; i < shape.size(); ++i) shape[i] = number(1, 4);
    std::vector<Placement> placements;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      placements.push_back({static_cast<Kind>(number(0, 2)), 0, number(1, 5)});
    }
    const Mesh mesh = grid(shape);
    for (std::uint32_t rank = 0; rank < mesh.places.size(); ++rank) {
      Numbers expected(static_cast<std::size_t>(length));
      std::iota(expected.begin(), expected.end(), 0);
      auto rest = static_cast<std::int64_t>(rank);
      Numbers coordinates(shape.size());
      for (std::size_t i = shape.size(); i-- > 0; rest /= shape[i]) coordinates[i] = rest % shape[i];
      for (std::size_t i = 0; i < shape.size(); ++i) {
        if (placements[i].kind == Kind::kShard) expected = chunk(expected, shape[i], coordinates[i]);
        if (placements[i].kind == Kind::kStridedShard) {
          expected = strided_chunk(expected, placements[i].split_factor, shape[i], coordinates[i]);
        }
      }
      const Result<LocalPieces> local = pieces_of(sharding_of({length}, placements), mesh, rank);
      ASSERT_TRUE(local) << local.error().what();
      ASSERT_EQ(elements_of(*local), expected) << "round " << round << ", rank " << rank;
    }
  }
}

TEST(LocalPieces, OfAForeignRankAreAnError) {
  const Result<LocalPieces> local = pieces_of(sharding_of({4}, {{Kind::kShard, 0, 1}}), grid({2}), 5);
  ASSERT_FALSE(local);
  EXPECT_EQ(local.error().code(), ErrorCode::kCorrupt);
}

TEST(LocalPieces, AbsurdFactorsExceedTheBudget) {
  const std::int64_t huge = std::int64_t{1} << 61;
  const MeshSharding sharding = sharding_of({huge}, {{Kind::kStridedShard, 0, huge}});
  const Result<LocalPieces> local = pieces_of(sharding, grid({2}), 0);
  ASSERT_FALSE(local);
  EXPECT_EQ(local.error().code(), ErrorCode::kUnsafe);
}

}  // namespace
}  // namespace cairn::torch_checkpointing
