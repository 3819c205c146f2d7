"""A library, loaded into this program and its descendants, with a switch that makes fsync fail."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_SWITCH = "CAIRN_FAULTS_SYNC_FAILS"

_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
static int fails(void) {
  const char* path = getenv("CAIRN_FAULTS_SYNC_FAILS");
  return path && access(path, F_OK) == 0;
}
#define SYNC(call) \\
  int call(int fd) { \\
    if (fails()) { errno = EIO; return -1; } \\
    return ((int (*)(int))dlsym(RTLD_NEXT, #call))(fd); \\
  }
SYNC(fsync)
SYNC(fdatasync)
"""


def switch() -> Path:
    """While the returned file exists, every sync fails."""
    return Path(os.environ[_SWITCH])


def load() -> None:
    """Executes this program again with the library, unless the library is already loaded."""
    if _SWITCH in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="cairn-faults-"))
    (folder / "sync.c").write_text(_SOURCE)
    library = folder / "sync.so"
    compiler = shutil.which("cc") or shutil.which("gcc") or "cc"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "sync.c", "-ldl"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library), _SWITCH: str(folder / "fails")}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def unload() -> None:
    """Removes the files that load() made, at the end."""
    if _SWITCH in os.environ:
        shutil.rmtree(switch().parent)
