// cairn-writer: the process that completes asynchronous saves when the trainer can't, or has better things to do. It is
// started by a trainer, with a socket as descriptor 3, and by nobody else.
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>

#include "os/child_process.h"
#include "writer/server.h"

namespace {

constexpr int kSocket = cairn::os::ChildProcess::kGivenDescriptor;
constexpr int kNotStartedByATrainer = 2;

// Whatever the trainer left open for its children to have.
void close_all_but_the_socket() {
#ifdef SYS_close_range
  (void)syscall(SYS_close_range, kSocket + 1, ~0U, 0);
#endif
}

}  // namespace

int main() {
  struct stat status;
  if (fstat(kSocket, &status) != 0 || !S_ISSOCK(status.st_mode)) {
    std::fputs("cairn-writer: is started by a program that saves with Cairn, not by hand\n", stderr);
    return kNotStartedByATrainer;
  }
  close_all_but_the_socket();
  // The terminal's signals and those of schedulers are for the trainer. SIGTERM is read from a descriptor.
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  // No directory is kept from being unmounted by this process, nor gets anything that a crash leaves.
  if (chdir("/") != 0) return 1;
  cairn::writer::WriterServer server{cairn::os::Fd(kSocket)};
  const bool ended_well = server.run().has_value();
  _exit(ended_well ? 0 : 1);  // threads that hang in the storage are not waited for
}
