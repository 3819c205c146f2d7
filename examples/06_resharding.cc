// Four ranks save a matrix, each a block of rows. Two ranks load the matrix, each a block of columns.
//
//   06_resharding DIR
//
// The ranks are threads of this program (cairn/collectives.h). Ranks of MPI make the same calls: example 05.
#include <cairn/cairn.h>

#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

namespace {

using cairn::DType;
using cairn::TensorView;

constexpr std::int64_t kRows = 12;
constexpr std::int64_t kColumns = 8;

// A rank's block of the matrix: the place and the numbers.
struct Block {
  cairn::Extents offsets;
  cairn::Extents sizes;
  std::vector<float> numbers = std::vector<float>(static_cast<std::size_t>(sizes[0] * sizes[1]));

  // The number of an element of the whole matrix.
  float number_at(std::int64_t row, std::int64_t column) const {
    return static_cast<float>((offsets[0] + row) * kColumns + offsets[1] + column);
  }
  // The element in row `row` and column `column` of the block.
  float& at(std::int64_t row, std::int64_t column) {
    return numbers[static_cast<std::size_t>(row * sizes[1] + column)];
  }
};

Block rows_of(std::int64_t rank, std::int64_t count) {
  return {.offsets = {kRows / count * rank, 0}, .sizes = {kRows / count, kColumns}};
}

Block columns_of(std::int64_t rank, std::int64_t count) {
  return {.offsets = {0, kColumns / count * rank}, .sizes = {kRows, kColumns / count}};
}

// The same description serves every save and load: Cairn finds the saved chunks that a block needs.
cairn::Result<cairn::StateDict> describe(Block& block) {
  cairn::StateDict state;
  const auto local = TensorView::contiguous(block.numbers.data(), DType::kFloat32, block.sizes);
  CAIRN_TRY(state.add_chunk("model.weight", local, {kRows, kColumns}, block.offsets));
  return state;
}

cairn::Result<void> save_rows(const std::filesystem::path& directory, cairn::Collectives& ranks) {
  Block block = rows_of(static_cast<std::int64_t>(ranks.rank()), static_cast<std::int64_t>(ranks.size()));
  for (std::int64_t row = 0; row < block.sizes[0]; ++row) {
    for (std::int64_t column = 0; column < block.sizes[1]; ++column) {
      block.at(row, column) = block.number_at(row, column);
    }
  }
  cairn::SaveOptions options;
  options.collectives = &ranks;
  CAIRN_TRY_ASSIGN(const cairn::StateDict state, describe(block));
  CAIRN_TRY(cairn::save(directory, state, options));
  return {};
}

cairn::Result<void> load_columns(const std::filesystem::path& directory, cairn::Collectives& ranks) {
  Block block = columns_of(static_cast<std::int64_t>(ranks.rank()), static_cast<std::int64_t>(ranks.size()));
  cairn::LoadOptions options;
  options.collectives = &ranks;
  CAIRN_TRY_ASSIGN(cairn::StateDict state, describe(block));
  CAIRN_TRY(cairn::load(directory, state, options));
  for (std::int64_t row = 0; row < block.sizes[0]; ++row) {
    for (std::int64_t column = 0; column < block.sizes[1]; ++column) {
      if (block.at(row, column) == block.number_at(row, column)) continue;
      return cairn::Error(cairn::ErrorCode::kInternal, "a loaded number differs from the saved number");
    }
  }
  return {};
}

using Work = std::function<cairn::Result<void>(cairn::Collectives& ranks)>;

// Calls `work` on `count` threads, the ranks of a group. Returns the first error.
cairn::Result<void> on_ranks(std::size_t count, const Work& work) {
  std::vector<cairn::Result<void>> results(count);
  std::vector<std::thread> threads;
  for (std::unique_ptr<cairn::Collectives>& ranks : cairn::make_local_group(count)) {
    // The thread owns its rank: a thread that returns early leaves the group, and the others do not wait for it.
    threads.emplace_back([&work, &results, mine = std::move(ranks)] { results[mine->rank()] = work(*mine); });
  }
  for (std::thread& thread : threads) thread.join();
  for (cairn::Result<void>& result : results) CAIRN_TRY(std::move(result));
  return {};
}

cairn::Result<void> run(const std::filesystem::path& directory) {
  CAIRN_TRY(on_ranks(4, [&](cairn::Collectives& ranks) { return save_rows(directory, ranks); }));
  std::printf("saved by 4 ranks, a block of rows each\n");
  CAIRN_TRY(on_ranks(2, [&](cairn::Collectives& ranks) { return load_columns(directory, ranks); }));
  std::printf("loaded by 2 ranks, a block of columns each\n");
  return {};
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return std::fprintf(stderr, "usage: %s DIR\n", words[0]), 2;
  const cairn::Result<void> done = run(words[1]);
  if (!done) std::fprintf(stderr, "%s\n", done.error().what());
  return done ? 0 : 1;
}
