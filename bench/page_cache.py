"""The page cache before a measurement: with or without the files to read, and without the dirty pages of earlier
writes."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def files_of(path: Path) -> list[Path]:
    """Returns the files below a directory; for a file, the file."""
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file())


def bytes_on_disk(path: Path) -> int:
    return sum(file.stat().st_size for file in files_of(path))


def forget(path: Path) -> None:
    """Empties the page cache of a file, or of the files below a directory."""
    for file in files_of(path):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    with contextlib.suppress(PermissionError):
        Path("/proc/sys/vm/drop_caches").write_text("1\n")


def remember(path: Path) -> None:
    """Brings a file, or the files below a directory, into the page cache."""
    for file in files_of(path):
        with file.open("rb", buffering=0) as stream:
            while stream.read(1 << 24):
                pass


@contextlib.contextmanager
def empty_directory(path: Path) -> Iterator[Path]:
    """Yields a new directory, after removing an earlier round's files and a sync of the device."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    os.sync()
    yield path
