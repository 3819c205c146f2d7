"""SIGKILL of a forked process before a chosen call of its work: each kill hits a known place of a protocol.

A library for LD_PRELOAD lists the calls by which the process changes a folder, and kills the process before the call
with a given number, or sends another signal. The place does not depend on the speed of the machine.
"""

import ctypes
import itertools
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import preloaded

# The calls by which the engine changes files. The engine makes all of these calls through the dynamic symbols. Left
# out are flock and utimensat: a lock changes no file, and the number of the lease's touches depends on the time.
_SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
#define REAL(result, name, ...) \\
  static result (*real)(__VA_ARGS__); \\
  if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, #name)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static int record = -1;
static int sent;
static long count, place;
static volatile int goes_on;

/* Counts the calls below `folder` from now on. Sends `signal` to this process before call `number`, which then waits
   for go_on(). 0 sends nothing. */
void watch_calls(const char *folder, int record_fd, int signal, long number) {
  snprintf(root, sizeof root, "%s", folder);
  record = record_fd;
  sent = signal;
  place = number;
}

void go_on(void) { goes_on = 1; }

/* Makes `path` relative to the folder. Returns whether the path lies in the folder. */
static int relative(char *path) {
  const size_t length = strlen(root);
  if (strncmp(path, root, length) != 0 || (path[length] != '/' && path[length] != 0)) return 0;
  if (path[length] == 0) {
    strcpy(path, ".");
  } else {
    memmove(path, path + length + 1, strlen(path + length));
  }
  return 1;
}

static int name_of(int fd, const char *name, char *path) {
  char link[64];
  ssize_t length = 0;
  if (name[0] != '/') {
    snprintf(link, sizeof link, fd == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", fd);
    length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
  }
  snprintf(path + length, PATH_MAX - length, length > 0 && name[0] != 0 ? "/%s" : "%s", name);
  return relative(path);
}

static void count_call(const char *call, const char *path, const char *target) {
  char line[2 * PATH_MAX + 64];
  ssize_t (*out)(int, const void *, size_t);
  *(void **)&out = dlsym(RTLD_NEXT, "write");
  pthread_mutex_lock(&mutex);
  const int length =
      snprintf(line, sizeof line, target == NULL ? "%s %s\\n" : "%s %s -> %s\\n", call, path, target);
  if (out(record, line, length) != length) abort();
  if (++count == place) {
    kill(getpid(), sent);
    while (!goes_on) usleep(1000);
  }
  pthread_mutex_unlock(&mutex);
}

static void before(const char *call, int fd, const char *name) {
  char path[PATH_MAX];
  if (record >= 0 && name_of(fd, name, path)) count_call(call, path, NULL);
}

static void before_two(const char *call, int fd, const char *name, int target_fd, const char *target_name) {
  char path[PATH_MAX], target[PATH_MAX];
  if (record < 0) return;
  const int inside = name_of(fd, name, path), target_inside = name_of(target_fd, target_name, target);
  if (inside || target_inside) count_call(call, path, target);
}

int mkdirat(int fd, const char *name, mode_t mode) {
  REAL(int, mkdirat, int, const char *, mode_t);
  before("mkdirat", fd, name);
  return real(fd, name, mode);
}
int openat(int fd, const char *name, int flags, ...) {
  REAL(int, openat, int, const char *, int, ...);
  va_list arguments;
  va_start(arguments, flags);
  const int with_mode = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  const int mode = with_mode ? va_arg(arguments, int) : 0;
  va_end(arguments);
  if (with_mode) before("openat", fd, name);
  return real(fd, name, flags, mode);
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
  REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
  before("pwrite", fd, "");
  return real(fd, data, length, offset);
}
ssize_t write(int fd, const void *data, size_t length) {
  REAL(ssize_t, write, int, const void *, size_t);
  before("write", fd, "");
  return real(fd, data, length);
}
int fsync(int fd) {
  REAL(int, fsync, int);
  before("fsync", fd, "");
  return real(fd);
}
int ftruncate(int fd, off_t length) {
  REAL(int, ftruncate, int, off_t);
  before("ftruncate", fd, "");
  return real(fd, length);
}
int fallocate(int fd, int mode, off_t offset, off_t length) {
  REAL(int, fallocate, int, int, off_t, off_t);
  before("fallocate", fd, "");
  return real(fd, mode, offset, length);
}
int renameat(int fd, const char *name, int target_fd, const char *target) {
  REAL(int, renameat, int, const char *, int, const char *);
  before_two("renameat", fd, name, target_fd, target);
  return real(fd, name, target_fd, target);
}
int renameat2(int fd, const char *name, int target_fd, const char *target, unsigned flags) {
  REAL(int, renameat2, int, const char *, int, const char *, unsigned);
  before_two("renameat2", fd, name, target_fd, target);
  return real(fd, name, target_fd, target, flags);
}
int linkat(int fd, const char *name, int target_fd, const char *target, int flags) {
  REAL(int, linkat, int, const char *, int, const char *, int);
  before_two("linkat", fd, name, target_fd, target);
  return real(fd, name, target_fd, target, flags);
}
int unlinkat(int fd, const char *name, int flags) {
  REAL(int, unlinkat, int, const char *, int);
  before("unlinkat", fd, name);
  return real(fd, name, flags);
}
"""

# What differs between two runs: the id of the save, the number of a file that has no name yet, and its descriptor.
_OF_ONE_RUN = ((r"[0-9a-f]{16,}", "ID"), (r"#\d+ \(deleted\)", "#"), (r"/proc/self/fd/\d+", "#"))
_LIMIT_SECONDS = 300.0  # work that takes longer hangs


@dataclass(frozen=True)
class Run:
    """The calls of the work up to its end, or up to the call before which the process was killed."""

    calls: list[str]
    is_killed: bool

    def has_made(self, pattern: str) -> bool:
        """Whether a call that matches was made. The call before which the process was killed was not made."""
        made = self.calls[:-1] if self.is_killed else self.calls
        return any(re.fullmatch(pattern, call) for call in made)


class Killer:
    """Runs work in forks of a process that has loaded the library and imported the modules of the work."""

    def __init__(self, folder: Path) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        environment = {**os.environ, "LD_PRELOAD": str(preloaded.library(_SHIM, folder))}
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._server = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()

    def run(
        self, work: Callable[[], object], watched: Path, number: int = 0, number_of_signal: int = signal.SIGKILL
    ) -> Run:
        """Runs `work`, a partial of a module's function. Sends the signal before that call below `watched`.

        The call waits until the work calls :func:`go_on`. 0: no signal is sent.
        """
        with tempfile.NamedTemporaryFile("r") as record:
            self._connection.send((work, os.path.realpath(watched), record.name, number_of_signal, number))
            assert self._connection.poll(_LIMIT_SECONDS), f"the work hangs: {record.read()}"
            status: int = self._connection.recv()
            calls = record.read()
        for pattern, name in _OF_ONE_RUN:
            calls = re.sub(pattern, name, calls)
        run = Run(calls.splitlines(), status == -signal.SIGKILL)
        assert run.is_killed or status == 0, f"the work has failed after {run.calls}"
        assert not run.is_killed or len(run.calls) == number, "killed from outside"
        return run

    def kill_before_each_call(self, work: Callable[[], object], watched: Path) -> Iterator[Run]:
        """Runs `work` once for each of its calls, and kills before the call. The last run ends without a kill.

        The caller undoes the run before it takes the next.
        """
        for number in itertools.count(1):
            run = self.run(work, watched, number)
            yield run
            if not run.is_killed:
                return

    def close(self) -> None:
        self._connection.close()
        self._server.kill()
        self._server.wait()


def assert_each_is_hit(steps: Mapping[str, str], runs: Sequence[Run]) -> None:
    """Fails unless, for each step, a kill came before a call that matches the step's pattern.

    A pattern may match several lines: the calls made just before, and the call of the kill.
    """
    killed = ["\n".join(run.calls) for run in runs if run.is_killed]
    for step, pattern in steps.items():
        assert any(re.search(rf"(?m)^{pattern}\Z", calls) for calls in killed), f"not hit: {step}, in {runs[-1].calls}"


def go_on() -> None:
    """Lets the call go on before which this process has got the signal."""
    ctypes.CDLL(None).go_on()


def _serve(connection: Connection) -> None:
    while True:
        try:
            work, *place = connection.recv()
        except EOFError:
            return
        child = os.fork()
        if child == 0:
            _work(work, *place)
        connection.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _work(work: Callable[[], object], watched: str, record: str, number_of_signal: int, number: int) -> None:
    # `finally` ends the fork after an interruption too: the fork must not return into the server's loop.
    try:
        fd = os.open(record, os.O_WRONLY | os.O_APPEND)
        ctypes.CDLL(None).watch_calls(os.fsencode(watched), fd, number_of_signal, ctypes.c_long(number))
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
