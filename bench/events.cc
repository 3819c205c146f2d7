// What the events of saves cost: saves of a tensor of 64 KiB, buffered, by one thread.
//
//   bench_events DIR off|listener|trace blocking|asynchronous SAVES
//
// `listener` subscribes a function that counts the events, and `trace` sets CAIRN_TRACE to DIR/trace. Prints the
// seconds of a save as JSON: of the call (best), and of the process's CPUs (mean, the kernel's time included).
#include <cairn/async_checkpointer.h>
#include <cairn/events.h>
#include <cairn/save.h>
#include <cairn/state_dict.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>

namespace {

using cairn::Result;

float memory[std::size_t{16} << 10U];
std::atomic<std::uint64_t> heard{0};

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  constexpr double kMicro = 1e-6;
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         kMicro * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

Result<void> save(const std::string& directory, const cairn::StateDict& state, cairn::AsyncCheckpointer* checkpointer,
                  double& best) {
  cairn::SaveOptions options;
  options.durability = cairn::Durability::kBuffered;
  options.thread_count = 1;
  options.direct_io = false;
  const auto start = std::chrono::steady_clock::now();
  const auto note = [&] {
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  };
  if (checkpointer == nullptr) {
    CAIRN_TRY(cairn::save(directory, state, options));
    note();
    return {};
  }
  cairn::AsyncSaveOptions asynchronous;
  asynchronous.save = options;
  CAIRN_TRY_ASSIGN(const cairn::AsyncSave started, checkpointer->save(directory, state, asynchronous));
  note();
  CAIRN_TRY(started.write.get());
  return {};
}

Result<void> measure(const std::string& directory, bool asynchronous, int saves) {
  cairn::StateDict state;
  CAIRN_TRY(state.add_tensor("weight", cairn::TensorView::contiguous(memory, cairn::DType::kFloat32,
                                                                     {static_cast<std::int64_t>(std::size(memory))})));
  cairn::AsyncCheckpointer checkpointer;
  double best = std::numeric_limits<double>::infinity();
  const double before = cpu_seconds();
  for (int i = 0; i < saves; ++i) {
    CAIRN_TRY(save(directory + "/step-7", state, asynchronous ? &checkpointer : nullptr, best));
  }
  std::printf("{\"call\": %.9f, \"cpu\": %.9f, \"heard\": %llu}\n", best, (cpu_seconds() - before) / saves,
              static_cast<unsigned long long>(heard.load()));
  return checkpointer.close();
}

}  // namespace

int main(int count, char** words) {
  if (count != 5) return std::fprintf(stderr, "usage: %s DIR LISTENER KIND SAVES\n", words[0]), 2;
  const std::string directory = words[1];
  const std::string_view listener = words[2];
  if (listener == "trace") setenv("CAIRN_TRACE", (directory + "/trace").c_str(), 1);
  cairn::Subscription subscription;
  if (listener == "listener") subscription = cairn::subscribe([](const cairn::Event&) { ++heard; });
  const Result<void> measured = measure(directory, std::string_view(words[3]) == "asynchronous", std::atoi(words[4]));
  if (!measured) std::fprintf(stderr, "%s\n", measured.error().what());
  return measured ? 0 : 1;
}
