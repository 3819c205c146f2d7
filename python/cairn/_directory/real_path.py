"""The name that two names of a directory have in common."""

import os
import queue
import threading
from pathlib import Path

_SECONDS = 10.0


def real_path(path: str | os.PathLike[str]) -> str:
    """Absolute and without links. Absolute as it was given if the storage does not tell within ten seconds.

    A link on storage that hangs can't be followed, and the call that tries can't be cancelled. A thread makes it, which
    nobody waits for when the interpreter ends.
    """
    given = Path(path).absolute()
    found: queue.SimpleQueue[str] = queue.SimpleQueue()
    try:
        threading.Thread(target=lambda: found.put(os.path.realpath(given)), name="cairn-path", daemon=True).start()
        return found.get(timeout=_SECONDS)
    except (RuntimeError, queue.Empty):  # no thread can be had, or no answer
        return os.path.normpath(given)
