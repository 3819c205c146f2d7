"""A name of a directory that is equal for all paths to the directory."""

import os
import queue
import threading
from pathlib import Path

_SECONDS = 10.0


def real_path(path: str | os.PathLike[str]) -> str:
    """Returns the absolute path without links; with links if the storage does not answer within ten seconds.

    A link on hanging storage can't be followed, and the system call can't be cancelled. Therefore a daemon thread makes
    the call, and the interpreter ends without waiting for the thread.
    """
    given = Path(path).absolute()
    found: queue.SimpleQueue[str] = queue.SimpleQueue()
    try:
        threading.Thread(target=lambda: found.put(os.path.realpath(given)), name="cairn-path", daemon=True).start()
        return found.get(timeout=_SECONDS)
    except (RuntimeError, queue.Empty):  # no thread could be started, or no answer came
        return os.path.normpath(given)
