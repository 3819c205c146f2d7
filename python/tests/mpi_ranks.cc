// A program for test_cpp_install.py: each call of cairn/mpi.h on two or more ranks, and a save and a load.
#include <cairn/cairn.h>
#include <cairn/mpi.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>

namespace {

void expect(bool fact, const char* text) {
  if (fact) return;
  std::fprintf(stderr, "not so: %s\n", text);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

using Messages = std::vector<std::string>;

std::string message_of(std::size_t rank) { return std::string(rank * 100'000, static_cast<char>('a' + rank)); }

void try_calls(cairn::Collectives& ranks) {
  Messages all;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) all.push_back(message_of(rank));
  for (std::size_t root = 0; root < ranks.size(); ++root) {
    expect(ranks.gather(message_of(ranks.rank()), root).value() == (root == ranks.rank() ? all : Messages()), "gather");
    expect(ranks.scatter(root == ranks.rank() ? all : Messages(), root).value() == all[ranks.rank()], "scatter");
    expect(ranks.broadcast(message_of(ranks.rank()), root).value() == all[root], "broadcast");
    std::vector<std::byte> bytes(1000, std::byte(ranks.rank()));
    ranks.broadcast_in_place(bytes, root).value();
    expect(bytes == std::vector<std::byte>(1000, std::byte(root)), "broadcast_in_place");
  }
  expect(ranks.all_gather(message_of(ranks.rank())).value() == all, "all_gather");
  ranks.barrier().value();
  for (const std::int64_t count : {0, 1, 14, 15, 40}) {
    std::vector<std::int64_t> mine(static_cast<std::size_t>(count));
    std::vector<std::int64_t> smallest(mine.size());
    const auto size = static_cast<std::int64_t>(ranks.size());
    for (std::int64_t i = 0; i < count; ++i) {
      mine[static_cast<std::size_t>(i)] = i % size == static_cast<std::int64_t>(ranks.rank()) ? -i : i;
      smallest[static_cast<std::size_t>(i)] = -i;
    }
    expect(ranks.smallest(mine).value() == smallest, "smallest");
  }
}

void try_subgroups(cairn::Collectives& ranks) {
  if (ranks.rank() > 0) {
    std::vector<std::size_t> members(ranks.size() - 1);
    std::iota(members.begin(), members.end(), 1);
    cairn::Collectives* const some = ranks.subgroup(members).value();
    expect(some == ranks.subgroup(members).value(), "one object for equal ranks");
    expect(some->rank() == ranks.rank() - 1 && some->size() == ranks.size() - 1, "the place in the subgroup");
    try_calls(*some);
  }
}

void try_failures() {
  auto lengths = cairn::mpi_collectives(MPI_COMM_WORLD).value();
  const auto refused = lengths->smallest(std::vector<std::int64_t>(lengths->rank() == 0 ? 2 : 3));
  expect(!refused && refused.error().code() == cairn::ErrorCode::kInvalidArgument, "different numbers of numbers");
  auto scatters = cairn::mpi_collectives(MPI_COMM_WORLD).value();
  const auto few = scatters->scatter(Messages(1), 0);
  const auto expected = scatters->rank() == 0 ? cairn::ErrorCode::kInvalidArgument : cairn::ErrorCode::kUnavailable;
  expect(!few && few.error().code() == expected, "a wrong number of messages");
  expect(!scatters->barrier(), "a call after a failure");
  expect(!cairn::mpi_collectives(MPI_COMM_NULL), "a null communicator");
}

void save_and_load(cairn::Collectives& ranks, const char* directory) {
  const auto rows = static_cast<std::int64_t>(ranks.size());
  const auto rank = static_cast<std::int64_t>(ranks.rank());
  std::vector<float> row(16, static_cast<float>(rank));
  const auto state_of = [&](std::vector<float>& memory) {
    cairn::StateDict state;
    const auto local = cairn::TensorView::contiguous(memory.data(), cairn::DType::kFloat32, {1, 16});
    state.add_chunk("w", local, {rows, 16}, {rank, 0}).value();
    state.add_value("step", 7).value();
    return state;
  };
  cairn::SaveOptions saving;
  saving.collectives = &ranks;
  cairn::save(directory, state_of(row), saving).value();
  std::vector<float> loaded(16, -1.0F);
  cairn::StateDict target = state_of(loaded);
  cairn::LoadOptions loading;
  loading.collectives = &ranks;
  loading.broadcast_replicas = true;
  cairn::load(directory, target, loading).value();
  expect(loaded == row, "the rank's row");
}

}  // namespace

int main(int argc, char** argv) {
  expect(argc == 2, "one argument");
  expect(!cairn::mpi_collectives(MPI_COMM_WORLD), "before MPI_Init");
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  {
    const auto ranks = cairn::mpi_collectives(MPI_COMM_WORLD).value();
    try_calls(*ranks);
    try_subgroups(*ranks);
    save_and_load(*ranks, argv[1]);
  }
  try_failures();
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) std::puts("all calls work");
  MPI_Finalize();
}
