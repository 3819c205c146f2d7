// Each rank of an MPI job saves and loads its rows of a table. A save by four ranks loads into any number of ranks.
//
//   mpiexec -n 4 05_many_ranks_with_mpi save DIR
//   mpiexec -n 2 05_many_ranks_with_mpi load DIR
//
// Compile with the MPI of the machine: mpicxx -std=c++20 ... -lcairn -lisal -pthread, or find_package(MPI).
#include <cairn/cairn.h>
#include <cairn/mpi.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace {

using cairn::DType;
using cairn::TensorView;

constexpr std::int64_t kRows = 1000;
constexpr std::int64_t kColumns = 64;

// The part of the model that one rank holds: a block of rows, and the bias, which every rank holds whole.
struct Part {
  explicit Part(const cairn::Collectives& ranks) {
    const auto rank = static_cast<std::int64_t>(ranks.rank());
    const auto count = static_cast<std::int64_t>(ranks.size());
    first_row = kRows * rank / count;
    row_count = kRows * (rank + 1) / count - first_row;
    table.resize(static_cast<std::size_t>(row_count * kColumns));
  }

  // Sets each number of the table to its place in the whole table.
  void fill() {
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(first_row * kColumns) + float(i);
    bias.assign(kColumns, 0.5F);
  }

  std::int64_t first_row = 0;
  std::int64_t row_count = 0;
  std::vector<float> table;
  std::vector<float> bias = std::vector<float>(kColumns);
};

cairn::Result<cairn::StateDict> describe(Part& part, std::int64_t step) {
  cairn::StateDict state;
  const auto rows = TensorView::contiguous(part.table.data(), DType::kFloat32, {part.row_count, kColumns});
  // A rank's block: the shape of the whole tensor, and the place of the block.
  CAIRN_TRY(state.add_chunk("model.table", rows, {kRows, kColumns}, {part.first_row, 0}));
  // A tensor or value of all ranks is written once.
  CAIRN_TRY(state.add_tensor("model.bias", TensorView::contiguous(part.bias.data(), DType::kFloat32, {kColumns})));
  CAIRN_TRY(state.add_value("step", step));
  return state;
}

cairn::Result<bool> save(const std::filesystem::path& directory, cairn::Collectives& ranks) {
  cairn::SaveOptions options;
  options.collectives = &ranks;
  Part part(ranks);
  part.fill();
  const cairn::Result<cairn::StateDict> state = describe(part, 1000);
  // A rank that fails before the save takes part all the same: the save then fails on every rank, and no rank waits.
  if (!state) return cairn::abandon_save(state.error(), options);
  CAIRN_TRY_ASSIGN(const cairn::SaveReport report, cairn::save(directory, *state, options));
  if (ranks.rank() == 0) std::printf("saved %s by %zu ranks\n", to_hex(report.save_id).c_str(), ranks.size());
  return true;
}

cairn::Result<bool> load(const std::filesystem::path& directory, cairn::Collectives& ranks) {
  cairn::LoadOptions options;
  options.collectives = &ranks;
  Part part(ranks);
  cairn::Result<cairn::StateDict> state = describe(part, 0);
  if (!state) return cairn::abandon_load(state.error(), options);
  CAIRN_TRY(cairn::load(directory, *state, options));
  Part expected(ranks);
  expected.fill();
  const bool is_equal = part.table == expected.table && part.bias == expected.bias;
  if (ranks.rank() == 0) {
    std::printf("loaded step %s by %zu ranks\n", to_string(*state->value("step")).c_str(), ranks.size());
  }
  return is_equal;
}

cairn::Result<bool> run(std::string_view task, const std::filesystem::path& directory) {
  // The collectives are destroyed when run() returns, before MPI_Finalize.
  CAIRN_TRY_ASSIGN(const std::unique_ptr<cairn::Collectives> ranks, cairn::mpi_collectives(MPI_COMM_WORLD));
  return task == "save" ? save(directory, *ranks) : load(directory, *ranks);
}

}  // namespace

int main(int count, char** words) {
  int provided = 0;
  MPI_Init_thread(&count, &words, MPI_THREAD_FUNNELED, &provided);
  if (count != 3) {
    std::fprintf(stderr, "usage: %s save|load DIR\n", words[0]);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const cairn::Result<bool> good = run(words[1], words[2]);
  if (!good) std::fprintf(stderr, "%s\n", good.error().what());
  if (good && !*good) std::fprintf(stderr, "the loaded numbers differ from the saved numbers\n");
  MPI_Finalize();
  return good && *good ? 0 : 1;
}
