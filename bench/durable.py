"""The last steps of a durable save, for libraries that lack the steps: syncing bytes and names."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Makes the bytes of a file durable, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(path: Path) -> None:
    """Makes a file durable, or a directory with all files below the directory; and its name."""
    if path.is_dir():
        for below in path.rglob("*"):
            sync(below)
    sync(path)
    sync(path.parent)
