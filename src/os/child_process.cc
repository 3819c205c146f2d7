#include "os/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "os/process_descriptor.h"

namespace cairn::os {
namespace {

constexpr std::chrono::milliseconds kPollInterval{5};  // for kernels without process descriptors

class SpawnActions {
 public:
  SpawnActions() { posix_spawn_file_actions_init(&actions_); }
  ~SpawnActions() { posix_spawn_file_actions_destroy(&actions_); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;

  // `given` is duplicated first: its number may be 0, 1 or 2, and the standard streams overwrite these numbers. All
  // other descriptors are closed by exec or by closefrom.
  bool fill(int given) {
    int failed = posix_spawn_file_actions_adddup2(&actions_, given, ChildProcess::kGivenDescriptor);
    for (int stream = 0; stream < ChildProcess::kGivenDescriptor; ++stream) {
      failed |= posix_spawn_file_actions_addopen(&actions_, stream, "/dev/null", O_RDWR, 0);
    }
#if __GLIBC_PREREQ(2, 34)
    failed |= posix_spawn_file_actions_addclosefrom_np(&actions_, ChildProcess::kGivenDescriptor + 1);
#endif
    return failed == 0;
  }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

class SpawnAttributes {
 public:
  SpawnAttributes() {
    posix_spawnattr_init(&attributes_);
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnAttributes() { posix_spawnattr_destroy(&attributes_); }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

}  // namespace

bool ProcessEnd::was_clean() const { return status && WIFEXITED(*status) && WEXITSTATUS(*status) == 0; }

std::string ProcessEnd::in_words() const {
  if (!status) return "ended with an unknown status: other code in the process collected the status";
  if (WIFSIGNALED(*status)) {
    const int signal = WTERMSIG(*status);
    const char* const description = sigdescr_np(signal);
    return "was killed by signal " + std::to_string(signal) + " (" +
           (description != nullptr ? description : "unknown") + ")";
  }
  return "exited with status " + std::to_string(WEXITSTATUS(*status));
}

Result<ChildProcess> ChildProcess::start(const std::string& executable, const std::vector<std::string>& arguments,
                                         int given) {
  SpawnActions actions;
  if (!actions.fill(given)) return Error::from_errno(ENOMEM, "can't prepare a process");
  std::vector<std::string> words{executable};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const SpawnAttributes attributes;
  pid_t id = -1;
  const int failed = posix_spawn(&id, executable.c_str(), actions.get(), attributes.get(), pointers.data(), environ);
  if (failed != 0) return Error::from_errno(failed, "can't start a process").file(executable);
  return ChildProcess(id);
}

ChildProcess::ChildProcess(pid_t id) : id_(id), process_(open_process(id)) {}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : id_(std::exchange(other.id_, -1)), process_(std::move(other.process_)), end_(other.end_) {}

ChildProcess::~ChildProcess() { (void)reap(); }

std::optional<ProcessEnd> ChildProcess::reap() {
  if (end_ || id_ < 0) return end_;
  int status = 0;
  pid_t ended = -1;
  do {
    ended = waitpid(id_, &status, WNOHANG);
  } while (ended < 0 && errno == EINTR);
  if (ended == id_) end_ = ProcessEnd{status};
  // ECHILD: the status is lost. Code elsewhere in the process waited for any child, or ignores SIGCHLD.
  if (ended < 0) end_ = ProcessEnd{};
  if (end_) process_ = Fd();
  return end_;
}

std::optional<ProcessEnd> ChildProcess::wait_for(std::chrono::milliseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  while (true) {
    if (auto end = reap()) return end;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) return std::nullopt;
    if (!process_) {
      std::this_thread::sleep_for(std::min(left, kPollInterval));
      continue;
    }
    pollfd waiting{process_.get(), POLLIN, 0};
    (void)poll(&waiting, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 60'000)));
  }
}

void ChildProcess::kill(int signal) const noexcept {
  if (process_) {
    (void)signal_process(process_, signal);
  } else if (!end_ && id_ > 0) {
    (void)::kill(id_, signal);
  }
}

}  // namespace cairn::os
