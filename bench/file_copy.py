"""A copy of files by the kernel, as by the program `cp`: the yardstick of conversions and consolidations."""

import os
from pathlib import Path

from durable import sync_all
from page_cache import files_of

REQUEST_BYTES = 64 * 2**20


def copy_file(source: Path, target: Path) -> None:
    """Copies the bytes by copy_file_range."""
    with source.open("rb") as reader, target.open("xb") as writer:
        left = source.stat().st_size
        while left > 0:
            done = os.copy_file_range(reader.fileno(), writer.fileno(), min(left, REQUEST_BYTES))
            if done == 0:
                raise OSError(f"'{source}' has become shorter")
            left -= done


def copy_files(source: Path, target: Path, durable: bool) -> None:
    """Copies a file, or the files directly in a directory. With `durable`, syncs bytes and names."""
    if source.is_file():
        copy_file(source, target)
    else:
        target.mkdir()
        for file in files_of(source):
            copy_file(file, target / file.name)
    if durable:
        sync_all(target)
