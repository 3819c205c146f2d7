"""The last step of a durable save, for libraries that lack the step: syncing the names."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
