// cairn-writer: the process that completes asynchronous saves, also after the trainer's death. Only a trainer starts
// the program, with a socket as descriptor 3.
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>

#include "events/listeners.h"
#include "os/child_process.h"
#include "writer/server.h"

namespace {

constexpr int kSocket = cairn::os::ChildProcess::kGivenDescriptor;
constexpr int kNotStartedByATrainer = 2;

// Closes descriptors that the trainer has left open across exec.
void close_all_but_the_socket() {
#ifdef SYS_close_range
  (void)syscall(SYS_close_range, kSocket + 1, ~0U, 0);
#endif
}

}  // namespace

int main() {
  struct stat status;
  if (fstat(kSocket, &status) != 0 || !S_ISSOCK(status.st_mode)) {
    std::fputs("cairn-writer: to be started only by a program that saves with Cairn\n", stderr);
    return kNotStartedByATrainer;
  }
  close_all_but_the_socket();
  // Signals of the terminal and of schedulers are for the trainer. The server reads SIGTERM from a descriptor.
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  // The working directory of a process cannot be unmounted, and receives core dumps: use the root directory.
  if (chdir("/") != 0) return 1;
  cairn::events::name_process("writer");
  cairn::writer::WriterServer server{cairn::os::Fd(kSocket)};
  const bool ended_well = server.run().has_value();
  _exit(ended_well ? 0 : 1);  // does not wait for threads that hang in the storage
}
