"""Peak memory of a call, or of a process and its descendants.

Run as a program, `peak_memory.py PID` watches a process and its descendants until the end of its own input, and prints
their peak memory in sum, in MiB. Shared memory counts once. The watched processes are stopped during each sample:
memory that moves between running processes would count twice or not at all.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SAMPLE_SECONDS = 0.02


def kibibytes(name: str) -> int:
    """Returns the value of a line of /proc/self/status, in KiB."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(words[1]) for words in lines if words[0] == f"{name}:")


class PeakMemory:
    """Counts from its creation: the resident memory that this process adds at its peak."""

    def __init__(self) -> None:
        self.before = kibibytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5\n")  # resets the high-water mark

    def mib(self) -> float:
        return (kibibytes("VmHWM") - self.before) / 1024


def processes_under(pid: int) -> set[int]:
    """Returns `pid` and its descendants."""
    found = {pid}
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found |= processes_under(int(child))
    return found


def proportional_kibibytes(pid: int) -> int:
    """Returns the process's own memory plus 1/n of the memory shared by n processes; 0 if the process is gone."""
    with contextlib.suppress(OSError):
        lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
        return next((int(words[1]) for words in lines if words[0] == "Pss:"), 0)
    return 0


def mib_together(pids: set[int]) -> float:
    return sum(proportional_kibibytes(pid) for pid in pids) / 1024


class PeakTogether:
    """Counts from its creation: the peak memory of this process and its descendants in sum.

    A watcher process stops all of them for each sample: time nothing meanwhile.
    """

    def __init__(self) -> None:
        command = [sys.executable, __file__, str(os.getpid())]
        self.watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.watcher.stdout is not None
        self.watcher.stdout.readline()  # the watcher is ready

    def mib(self) -> float:
        """Returns the peak until now, and ends the watch."""
        return float(self.watcher.communicate()[0])


@contextlib.contextmanager
def standing_still(pids: set[int]) -> Iterator[None]:
    def tell(number: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    tell(signal.SIGSTOP)
    try:
        yield
    finally:
        tell(signal.SIGCONT)


def watch(pid: int) -> float:
    peak = 0.0
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], SAMPLE_SECONDS)[0]:
        pids = processes_under(pid) - {os.getpid()}
        with standing_still(pids):
            peak = max(peak, mib_together(pids))
    return peak


if __name__ == "__main__":
    print(watch(int(sys.argv[1])))
