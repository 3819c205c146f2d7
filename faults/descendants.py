"""The descendants of this program: forked ranks, and their writers, which outlive the ranks.

A writer becomes a child of this program when its trainer dies. The program therefore sees every process that it
started, whichever process was killed.
"""

import ctypes
import os
import signal
import time
from collections import Counter
from pathlib import Path

from tally import Problem

_PR_SET_CHILD_SUBREAPER = 36
_WRITER = "cairn-writer"
_END_SECONDS = 60.0  # within this time a writer has exited, or has finished its staged saves


def adopt_orphans() -> None:
    """Makes this process the parent of every orphaned descendant from now on."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def writers_of(trainer: int) -> list[int]:
    """Returns the running writer processes that the trainer has started."""
    return [pid for pid in _children(trainer) if _name(pid) == _WRITER]


def strike(trainer: int, number: int, whom: str) -> None:
    """Sends the signal to a trainer, to its writers, or to both, the writers first."""
    if whom != "trainer":
        for writer in writers_of(trainer):
            os.kill(writer, number)
    if whom != "writer":
        os.kill(trainer, number)


def await_none() -> None:
    """Returns when this program has no child. Kills the children that stay, and raises Problem."""
    until = time.monotonic() + _END_SECONDS
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            return
        if time.monotonic() > until:
            left = {pid: _name(pid) for pid in _children(os.getpid())}
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise Problem(f"processes that stay: {left}")
        time.sleep(0.005)


def end_all() -> None:
    """Kills the remaining processes after a Problem; a stopped process would stay for ever."""
    for pid in _children(os.getpid()):
        os.kill(pid, signal.SIGKILL)
    await_none()


def open_files(pid: int) -> Counter[str]:
    """Counts the open files of a process by kind."""
    kinds: Counter[str] = Counter()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            continue  # closed meanwhile
        kinds["memfd" if target.startswith("/memfd:") else target.partition(":")[0]] += 1
    return kinds


def _children(parent: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{parent}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        pass  # the process, or a thread, is gone
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except (FileNotFoundError, ProcessLookupError):
        return ""
