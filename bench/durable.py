"""What a save does last, where a library does not: its names are made durable."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Of a directory: the names in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
