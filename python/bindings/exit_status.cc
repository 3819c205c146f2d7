// fail_exit: replaces the exit status 0 of a process.
//
// 1. The first call of fail_exit() registers a handler with on_exit().
// 2. The C library calls the handler with the status of exit(), after Python has run its atexit callbacks and flushed
//    its streams. A status that is not 0 stays: 3 of sys.exit(3), 1 after an uncaught exception, 120 after a failed
//    flush of a stream.
// 3. For status 0 the handler calls exit() again. glibc then runs the remaining handlers, flushes the streams of C, and
//    ends the process with the new status.
//
// A process that ends without exit() (a signal, os._exit, exec) keeps its status, and so does a forked child.
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "bound.h"

namespace cairn::python {
namespace {

// Variables of the module: a process has a single exit status, and on_exit() handlers outlive all objects.
std::atomic<int> wanted_status = 0;
std::atomic<pid_t> owner = 0;  // the process that called fail_exit(); a forked child has a different id

void replace_success(int status, void* /*argument*/) {
  const int wanted = wanted_status;
  if (status == 0 && wanted != 0 && owner == getpid()) std::exit(wanted);
}

void fail_exit(std::uint8_t status) {
  // on_exit() fails only without memory for a list of 32 more handlers; the exit status then stays unchanged.
  static const bool is_registered = on_exit(&replace_success, nullptr) == 0;
  (void)is_registered;
  owner = getpid();
  wanted_status = status;
}

}  // namespace

void bind_exit_status(nb::module_& module) { module.def("fail_exit", &fail_exit, nb::arg()); }

}  // namespace cairn::python
