"""A memory cgroup with a limit, for a program that must run in little memory."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Limit:
    """`words` before a command run the command under the limit. `name` says by which means."""

    name: str
    words: list[str]
    peak_mib: Callable[[], float | None]  # of memory and page cache, until now; None without a cgroup


def _hierarchy() -> tuple[Path, bool] | None:
    """Returns the mount of the memory controller, and whether it is of version 2; None without a mount."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, options = line.split()[:4]
        if kind == "cgroup" and "memory" in options.split(","):
            return Path(place), False
        if kind == "cgroup2" and "memory" in (Path(place) / "cgroup.controllers").read_text().split():
            return Path(place), True
    return None


def _in_group(group: Path, is_second: bool, mebibytes: int) -> Limit:
    """Sets the limit of a new group."""
    (group / ("memory.max" if is_second else "memory.limit_in_bytes")).write_text(str(mebibytes << 20))
    swap = group / ("memory.swap.max" if is_second else "memory.memsw.limit_in_bytes")
    with contextlib.suppress(OSError):  # without swap there is no such file
        swap.write_text("0" if is_second else str(mebibytes << 20))
    peak = group / ("memory.peak" if is_second else "memory.max_usage_in_bytes")

    words = ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(group / "cgroup.procs")]
    return Limit("memory cgroup", words, lambda: int(peak.read_text()) / 2**20)


@contextlib.contextmanager
def memory_limit(mebibytes: int) -> Iterator[Limit]:
    """Yields a limit for programs: a new memory cgroup, or RLIMIT_DATA where the machine lets no cgroup be made.

    A cgroup also counts the page cache of the files that the program reads and writes.
    """
    found = _hierarchy()
    group = found[0] / f"cairn-bench-{os.getpid()}" if found else None
    try:
        if found is None or group is None:
            raise OSError("no memory controller")
        group.mkdir()
        limit = _in_group(group, found[1], mebibytes)
    except OSError:
        words = ["sh", "-c", 'ulimit -d "$0" && exec "$@"', str(mebibytes << 10)]
        yield Limit("RLIMIT_DATA", words, lambda: None)
        return
    try:
        yield limit
    finally:
        group.rmdir()
