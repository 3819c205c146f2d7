"""A block I/O cgroup that limits the rate of a program's reads from a disk."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def _hierarchy() -> tuple[Path, bool] | None:
    """Returns the mount of the controller for block devices, and whether it is of version 2; None without a mount."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, options = line.split()[:4]
        if kind == "cgroup" and "blkio" in options.split(","):
            return Path(place), False
        if kind == "cgroup2" and "io" in (Path(place) / "cgroup.controllers").read_text().split():
            return Path(place), True
    return None


@contextlib.contextmanager
def read_limit(bytes_per_second: int, folder: Path) -> Iterator[list[str]]:
    """Yields words before a command that run the command under a limit for reads from the disk of `folder`.

    Reads from the page cache are not limited. Raises OSError where the machine lets no cgroup be made.
    """
    found = _hierarchy()
    if found is None:
        raise OSError("no cgroup controller for block devices")
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    group = found[0] / f"cairn-bench-{os.getpid()}"
    group.mkdir()
    try:
        if found[1]:
            (group / "io.max").write_text(f"{number} rbps={bytes_per_second}")
        else:
            (group / "blkio.throttle.read_bps_device").write_text(f"{number} {bytes_per_second}")
        yield ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(group / "cgroup.procs")]
    finally:
        group.rmdir()
