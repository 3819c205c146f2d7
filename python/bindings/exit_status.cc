// fail_exit: lets a process that would exit with status 0 exit with another status.
//
// 1. fail_exit() registers a handler with on_exit(), the first time that it is called.
// 2. The C library calls the handler with the status of exit(), when Python has run its atexit callbacks and flushed
// its
//    streams. A status other than 0 stays: that of sys.exit(3), 1 after an uncaught exception, 120 if a stream could
//    not be flushed.
// 3. For status 0 the handler calls exit() again. glibc then runs the handlers that are left, flushes the streams of C,
//    and ends the process with the new status.
//
// A process that ends without exit() (a signal, os._exit, exec) is not changed, and neither is a forked child.
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "bound.h"

namespace cairn::python {
namespace {

// A process has one exit status, and on_exit() handlers outlive all objects: hence variables of the module.
std::atomic<int> wanted_status = 0;
std::atomic<pid_t> owner = 0;  // the process that called fail_exit(); a forked child is another one

void replace_success(int status, void* /*argument*/) {
  const int wanted = wanted_status;
  if (status == 0 && wanted != 0 && owner == getpid()) std::exit(wanted);
}

void fail_exit(std::uint8_t status) {
  // on_exit() fails only if there is no memory for a list of 32 more handlers; the exit status then stays as it was.
  static const bool is_registered = on_exit(&replace_success, nullptr) == 0;
  (void)is_registered;
  owner = getpid();
  wanted_status = status;
}

}  // namespace

void bind_exit_status(nb::module_& module) { module.def("fail_exit", &fail_exit, nb::arg()); }

}  // namespace cairn::python
