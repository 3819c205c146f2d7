"""How much memory something takes at its peak.

Run as a program, `peak_memory.py PID` watches a process and those that it started until its own input ends, and prints
the most that they had together, in MiB. Memory that they share counts once. They stand still while they are looked at:
what goes from one to the other meanwhile would count twice, or not at all.
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
    """A line of /proc/self/status."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(words[1]) for words in lines if words[0] == f"{name}:")


class PeakMemory:
    """Counts from its creation: the resident memory that this process adds at its peak."""

    def __init__(self) -> None:
        self.before = kibibytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5\n")  # the high-water mark starts again from here

    def mib(self) -> float:
        return (kibibytes("VmHWM") - self.before) / 1024


def processes_under(pid: int) -> set[int]:
    """`pid`, and the processes that it started, and theirs."""
    found = {pid}
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found |= processes_under(int(child))
    return found


def proportional_kibibytes(pid: int) -> int:
    """Of a process: its own memory, and of what n processes share 1/n. 0 if it has gone."""
    with contextlib.suppress(OSError):
        lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
        return next((int(words[1]) for words in lines if words[0] == "Pss:"), 0)
    return 0


def mib_together(pids: set[int]) -> float:
    return sum(proportional_kibibytes(pid) for pid in pids) / 1024


class PeakTogether:
    """Counts from its creation: the most that this process and those that it started have together.

    Another process looks, and makes them stand still for that: time nothing meanwhile.
    """

    def __init__(self) -> None:
        command = [sys.executable, __file__, str(os.getpid())]
        self.watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.watcher.stdout is not None
        self.watcher.stdout.readline()  # it is ready

    def mib(self) -> float:
        """The peak until now; ends the watch."""
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
