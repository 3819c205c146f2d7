"""A line in the log ``cairn``, at INFO, for each save and load that has ended. The coordinator logs for all ranks."""

import logging
import os
import re
import time
import traceback
from pathlib import Path

_log = logging.getLogger("cairn")
_AFTER_STEP = re.compile(r"steps?[-_=. ]?([0-9]+)(?![0-9])(?!\.0*[1-9])", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]+")
_VERSION = re.compile(r"-v[0-9]+\.ckpt$")
_DIGITS_MAX = 18


class Stopwatch:
    """The time of a call, from the construction of the object to :meth:`log`. `verb`: "saved", "loaded"..."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._started = time.monotonic()

    def log(self, place: str | bytes | os.PathLike[str], size: int | None, rank: int = 0, ranks: int = 1) -> None:
        """Logs the end of the call, for the checkpoint `place`.

        `size`: the bytes that this rank wrote or read; None: torch's code drove the call, and the number is not known.
        """
        if rank != 0 or not _log.isEnabledFor(logging.INFO):
            return
        try:
            self._log(place, size, ranks)
        except Exception:  # a filter of the caller must not fail a call that has done its work
            if logging.raiseExceptions:
                traceback.print_exc()

    def _log(self, place: str | bytes | os.PathLike[str], size: int | None, ranks: int) -> None:
        seconds = time.monotonic() - self._started
        directory = os.fsdecode(place)
        step = _step_in_name(Path(directory).name)
        by = f" by rank 0 of {ranks}" if ranks > 1 else ""
        told = f"'{directory}'" + ("" if step is None else f", step {step}")
        if size is None:
            _log.info("%s %s, driven by torch's code, in %.3f s", self._verb, told, seconds)
            return
        rate = size / max(seconds, 1e-6) / 1e6
        _log.info("%s %s: %d bytes%s in %.3f s, %.1f MB/s", self._verb, told, size, by, seconds, rate)


def _step_in_name(name: str) -> int | None:
    """Returns the step in a directory's name, as the engine finds it (src/core/step_in_name.h)."""
    numbers = _AFTER_STEP.findall(name) or _NUMBER.findall(_VERSION.sub("", name))
    return int(numbers[-1]) if numbers and len(numbers[-1]) <= _DIGITS_MAX else None
