// 1. Check the room on the disk and in memory, and make the private folder and the state.
// 2. In each round, write the raw file, save, read the raw file, and load into the state's memory. Before each read the
//    page cache gives up the files. Then remove the files.
// 3. Remove the folder.
//
// The calls of the bench itself into the storage run on a watched thread; save() and load() watch their own.
#include <cairn/bucket_url.h>
#include <cairn/checkpoint.h>
#include <cairn/inspect.h>
#include <cairn/save.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <utility>

#include "core/byte_units.h"
#include "events/work.h"
#include "os/call_within.h"
#include "os/fd.h"
#include "os/memory_limits.h"
#include "os/page_buffer.h"
#include "storage/raw_rates.h"
#include "storage/watched_call.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using storage::RawTransfer;
using storage::Watch;

constexpr std::uint64_t kTensorBytesMax = std::uint64_t{64} << 20;
constexpr std::chrono::seconds kBenchRemovalMax{2};
constexpr std::uint64_t kPasses = 4;  // of a round, over all bytes

Error bench_failure(const char* message, const fs::path& path) {
  return Error::from_errno(errno, message).file(path.string());
}

double rate_since(std::chrono::steady_clock::time_point start, std::uint64_t bytes) {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return static_cast<double>(bytes) / std::max(seconds, 1e-9);
}

// Tensors of float32 with random bits, which no lower layer compresses.
class BenchState {
 public:
  static Result<std::unique_ptr<BenchState>> make(std::uint64_t bytes, const std::function<bool()>& interrupted) {
    auto made = std::make_unique<BenchState>();
    std::mt19937_64 random(1);
    for (std::uint64_t begin = 0; begin < bytes; begin += kTensorBytesMax) {
      const os::PageBuffer& memory = made->memory_.emplace_back(std::min(kTensorBytesMax, bytes - begin));
      for (std::size_t at = 0; at < memory.size(); at += sizeof(std::uint64_t)) {
        if (at % kMiB == 0 && interrupted && interrupted()) {
          return Error(ErrorCode::kCancelled, "interrupted while making the state");
        }
        const std::uint64_t noise = random();
        std::memcpy(memory.data() + at, &noise, sizeof noise);
      }
      std::uint64_t first = 0;
      std::memcpy(&first, memory.data(), sizeof first);
      made->first_words_.push_back(first);
      const auto elements = static_cast<std::int64_t>(memory.size() / sizeof(float));
      CAIRN_TRY(made->dict_.add_tensor("tensor_" + std::to_string(made->memory_.size()),
                                       TensorView::contiguous(memory.data(), DType::kFloat32, {elements})));
    }
    return made;
  }

  StateDict& dict() { return dict_; }
  std::size_t tensors() const { return memory_.size(); }

  // Before a load: the load must bring the words back.
  void forget() {
    for (const os::PageBuffer& memory : memory_) std::memset(memory.data(), 0, sizeof(std::uint64_t));
  }
  bool is_whole() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (std::memcmp(memory_[i].data(), &first_words_[i], sizeof(std::uint64_t)) != 0) return false;
    }
    return true;
  }

 private:
  std::vector<os::PageBuffer> memory_;
  std::vector<std::uint64_t> first_words_;
  StateDict dict_;
};

// The private folder; removed with all that it holds.
class BenchFolder {
 public:
  explicit BenchFolder(const fs::path& directory)
      : path_(directory / (".cairn-bench-" + std::to_string(getpid()) + "-" + std::to_string(std::random_device()()))) {
  }
  BenchFolder(const BenchFolder&) = delete;
  BenchFolder& operator=(const BenchFolder&) = delete;
  ~BenchFolder() {
    if (!is_made_) return;
    (void)os::call_within(kBenchRemovalMax, [path = path_] {
      std::error_code ignored;
      fs::remove_all(path, ignored);
      return true;
    });
  }
  const fs::path& path() const { return path_; }
  void set_made() { is_made_ = true; }

 private:
  const fs::path path_;
  bool is_made_ = false;
};

Result<void> check_disk(const fs::path& directory, std::uint64_t bytes) {
  struct statvfs system {};
  if (statvfs(directory.c_str(), &system) != 0) return bench_failure("the directory can't be examined", directory);
  const std::uint64_t free = std::uint64_t{system.f_bavail} * system.f_frsize;
  const std::uint64_t margin = bytes / 8;  // of what the file system and the metadata add
  if (free / 2 >= bytes && free - 2 * bytes >= margin) return {};
  return Error(ErrorCode::kNoSpace, "no room for the raw file and the checkpoint: free space, or bench fewer bytes")
      .file(directory.string())
      .expected(std::to_string(2 * bytes + margin) + " free bytes")
      .actual(std::to_string(free));
}

Result<void> check_memory(std::uint64_t bytes) {
  const os::MemoryRoom room = os::MemoryLimits().room();
  if (room.bytes >= bytes) return {};
  return Error(ErrorCode::kUnavailable, "no memory for the state: bench fewer bytes")
      .expected(std::to_string(bytes) + " bytes")
      .actual(room.figures());
}

Result<void> drop_from_cache(const fs::path& file) {
  const os::Fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return bench_failure("opening a file failed", file);
  (void)posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);  // a hint
  return {};
}

// False if the file system refuses direct I/O: the file then goes through the page cache.
bool make_direct(const os::Fd& file) {
  const int flags = fcntl(file.get(), F_GETFL);
  return flags >= 0 && fcntl(file.get(), F_SETFL, flags | O_DIRECT) == 0;
}

class DirectoryBench {
  template <typename Work>
  auto watched(Work work) {
    return storage::watched_call(
        {options_.interrupted, {}, Error(ErrorCode::kCancelled, "interrupted while measuring"), options_.deadlines},
        std::move(work));
  }

 public:
  DirectoryBench(const fs::path& directory, const BenchOptions& options, std::uint64_t bytes)
      : directory_(directory), options_(options), bytes_(bytes), folder_(directory) {}

  Result<BenchReport> run() {
    work_ = events::Work::begin(WorkKind::kMeasure, directory_.native());
    Result<BenchReport> report = measure();
    work_.end(report.has_value());
    return report;
  }

 private:
  Result<BenchReport> measure() {
    work_.set(0, kPasses * options_.rounds * bytes_);
    const fs::path folder = folder_.path();
    const auto make = [directory = directory_, folder, bytes = bytes_](Watch& watch) -> Result<void> {
      const storage::OperationWatch::Call call(*watch.operations, storage::OperationKind::kNames, "making",
                                               folder.filename().string());
      CAIRN_TRY(check_disk(directory, bytes));
      return mkdir(folder.c_str(), 0700) == 0 ? Result<void>() : bench_failure("making a folder failed", folder);
    };
    CAIRN_TRY(watched(make));  // (1)
    folder_.set_made();
    CAIRN_TRY(check_memory(bytes_));
    CAIRN_TRY_ASSIGN(state_, BenchState::make(bytes_, options_.interrupted));
    BenchReport report;
    report.bytes = bytes_;
    report.tensors = state_->tensors();
    for (std::size_t round = 0; round < options_.rounds; ++round) {
      CAIRN_TRY_ASSIGN(const BenchRates rates, run_round(report));
      report.rounds.push_back(rates);
    }
    return report;
  }

  struct RawFile {
    double rate = 0;
    bool is_direct = false;
  };

  // (2)
  Result<BenchRates> run_round(BenchReport& report) {
    const fs::path raw = folder_.path() / "raw";
    const fs::path checkpoint = folder_.path() / "checkpoint";
    BenchRates rates;
    CAIRN_TRY_ASSIGN(const RawFile written, transfer_raw(raw, true));
    rates.raw_write = written.rate;
    note_pass();
    report.is_direct = written.is_direct;
    auto start = std::chrono::steady_clock::now();
    CAIRN_TRY(save(checkpoint, state_->dict(), {.deadlines = options_.deadlines, .interrupted = options_.interrupted}));
    rates.save = rate_since(start, bytes_);
    note_pass();
    CAIRN_TRY_ASSIGN(const RawFile read, transfer_raw(raw, false));
    rates.raw_read = read.rate;
    note_pass();
    CAIRN_TRY(drop_checkpoint(checkpoint));
    state_->forget();
    start = std::chrono::steady_clock::now();
    CAIRN_TRY(load(checkpoint, state_->dict(), {.interrupted = options_.interrupted}));
    rates.load = rate_since(start, bytes_);
    note_pass();
    if (!state_->is_whole()) return Error(ErrorCode::kInternal, "the load left other bytes than the save took");
    CAIRN_TRY(remove_files(raw, checkpoint));
    return rates;
  }

  void note_pass() {
    ++passes_;
    work_.set(passes_ * bytes_, kPasses * options_.rounds * bytes_);
  }

  Result<RawFile> transfer_raw(const fs::path& raw, bool is_write) {
    return watched([raw, is_write, bytes = bytes_](Watch& watch) -> Result<RawFile> {
      if (!is_write) CAIRN_TRY(drop_from_cache(raw));
      const storage::RawBuffers buffers;
      const storage::RawRequests requests{.bytes = bytes,
                                          .interrupted = [&watch] { return watch.stop.is_set(); },
                                          .operations = watch.operations.get(),
                                          .name = raw.filename().string()};
      const os::Fd file(::open(raw.c_str(), O_RDWR | (is_write ? O_CREAT | O_EXCL : 0) | O_CLOEXEC, 0600));
      if (!file) return bench_failure("opening the raw file failed", raw);
      const bool is_direct = make_direct(file);
      CAIRN_TRY_ASSIGN(const RawTransfer moved, is_write ? storage::write_raw(file.get(), buffers, requests)
                                                         : storage::read_raw(file.get(), buffers, requests));
      return RawFile{moved.rate(), is_direct};
    });
  }

  Result<void> drop_checkpoint(const fs::path& checkpoint) {
    return watched([checkpoint](Watch& watch) -> Result<void> {
      const storage::OperationWatch::Call call(*watch.operations, storage::OperationKind::kNames, "listing",
                                               checkpoint.filename().string());
      std::error_code failure;
      for (fs::directory_iterator it(checkpoint, failure); !failure && it != fs::end(it); it.increment(failure)) {
        CAIRN_TRY(drop_from_cache(it->path()));
      }
      return failure ? Result<void>(Error(ErrorCode::kUnavailable, failure.message()).file(checkpoint.string()))
                     : Result<void>();
    });
  }

  Result<void> remove_files(const fs::path& raw, const fs::path& checkpoint) {
    return watched([raw, checkpoint](Watch& watch) -> Result<void> {
      const storage::OperationWatch::Call call(*watch.operations, storage::OperationKind::kNames, "removing",
                                               checkpoint.filename().string());
      std::error_code failure;
      fs::remove(raw, failure);
      if (!failure) fs::remove_all(checkpoint, failure);
      return failure ? Result<void>(Error(ErrorCode::kUnavailable, failure.message()).file(checkpoint.string()))
                     : Result<void>();
    });
  }

  const fs::path directory_;
  const BenchOptions options_;
  const std::uint64_t bytes_;
  BenchFolder folder_;
  events::Work work_;
  std::uint64_t passes_ = 0;  // over all bytes
  std::unique_ptr<BenchState> state_;
};

template <typename Figure>
double median_of(const std::vector<BenchRates>& rounds, Figure figure) {
  std::vector<double> figures;
  figures.reserve(rounds.size());
  for (const BenchRates& round : rounds) figures.push_back(figure(round));
  std::sort(figures.begin(), figures.end());
  const std::size_t middle = figures.size() / 2;
  return figures.size() % 2 == 1 ? figures[middle] : (figures[middle - 1] + figures[middle]) / 2;
}

}  // namespace

Result<BenchReport> bench_directory(const fs::path& directory, const BenchOptions& options) {
  if (is_bucket_url(directory)) {
    return Error(ErrorCode::kInvalidArgument, "the bench measures a directory of a file system")
        .actual(directory.string());
  }
  const std::uint64_t bytes = options.bytes / storage::kRawRequestBytes * storage::kRawRequestBytes;
  if (bytes == 0 || options.rounds == 0) {
    return Error(ErrorCode::kInvalidArgument, "a bench needs at least 4 MiB and a round");
  }
  CAIRN_TRY_ASSIGN(BenchReport report, DirectoryBench(directory, options, bytes).run());
  const auto& rounds = report.rounds;
  report.median.raw_write = median_of(rounds, [](const BenchRates& one) { return one.raw_write; });
  report.median.save = median_of(rounds, [](const BenchRates& one) { return one.save; });
  report.median.raw_read = median_of(rounds, [](const BenchRates& one) { return one.raw_read; });
  report.median.load = median_of(rounds, [](const BenchRates& one) { return one.load; });
  report.save_ratio = median_of(rounds, [](const BenchRates& one) { return one.save / one.raw_write; });
  report.load_ratio = median_of(rounds, [](const BenchRates& one) { return one.load / one.raw_read; });
  return report;
}

}  // namespace cairn
