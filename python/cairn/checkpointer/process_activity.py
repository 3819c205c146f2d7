"""The work of another process, as the kernel counts it: CPU time, and bytes read and written."""

import contextlib
import time
from pathlib import Path

_COUNTERS_OF_IO = ("rchar", "wchar", "read_bytes", "write_bytes")
_PROC = Path("/proc")


class ProcessActivity:
    """Measures how long a process and its descendants have done no work. One thread at a time.

    Work is CPU time in steps of a clock tick (10 ms), or a byte that a system call has moved. A stopped process does no
    work, nor does a process whose every thread sleeps or waits in a call into the storage. A polling process does work:
    polling uses CPU time.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._counters: frozenset[tuple[int, ...]] = frozenset()
        self._last_change = time.monotonic()

    def idle_seconds(self) -> float:
        """Returns the seconds since the call that first saw the present counter values."""
        counters = frozenset(_counters_of(pid) for pid in _with_descendants(self._pid))
        now = time.monotonic()
        if counters != self._counters:
            self._counters = counters
            self._last_change = now
        return now - self._last_change


def _with_descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:  # grows in the loop: children of children follow
        try:
            tasks = list((_PROC / str(parent) / "task").iterdir())
            children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
        except OSError:  # the process has ended, or this kernel does not list children
            continue
        found += [child for child in children if child not in found]
    return found


def _counters_of(pid: int) -> tuple[int, ...]:
    return (pid, *_cpu_ticks_of(pid), *_bytes_moved_by(pid))


def _cpu_ticks_of(pid: int) -> tuple[int, ...]:
    with contextlib.suppress(OSError):  # the process has ended
        # The command may hold spaces and brackets; the state is the first field after its last bracket.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return int(fields[11]), int(fields[12])
    return ()


def _bytes_moved_by(pid: int) -> tuple[int, ...]:
    with contextlib.suppress(OSError):  # the process has ended, changed its user, or this kernel does not count
        lines = (_PROC / str(pid) / "io").read_text().splitlines()
        counts = dict(line.split(": ") for line in lines)
        return tuple(int(counts[name]) for name in _COUNTERS_OF_IO)
    return ()
