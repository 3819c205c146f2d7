"""Restarts of a read whose checkpoint a save replaced during the read, by the engine's policy."""

import itertools
import time
from collections.abc import Callable
from typing import TypeVar

from cairn import _engine
from cairn.errors import Replaced

_Result = TypeVar("_Result")


def restarting(attempt: Callable[[], _Result]) -> _Result:
    """Returns the result of `attempt`; calls `attempt` again if a save replaced the checkpoint during the attempt."""
    for restarts in itertools.count():
        try:
            return attempt()
        except Replaced:
            pause = _engine.pause_before_restart(restarts)
            if pause is None:
                raise
        time.sleep(pause)
    raise AssertionError("unreachable")
