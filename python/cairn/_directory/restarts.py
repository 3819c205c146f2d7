"""The restart policy of reads: a read begins again if a save replaced the checkpoint during the read."""

import time
from collections.abc import Callable
from typing import TypeVar

from cairn.errors import Replaced

# before the first restart; doubled for each next one: a network file system may show old metadata for a while
_RESTART_PAUSE_SECONDS = 0.005
_RESTARTS_MAX = 8  # restarts of a load after a save replaced the checkpoint during the load
_Result = TypeVar("_Result")


def restarting(attempt: Callable[[], _Result]) -> _Result:
    """Returns the result of `attempt`; calls `attempt` again if a save replaced the checkpoint during the attempt."""
    for restarts in range(_RESTARTS_MAX):
        try:
            return attempt()
        except Replaced:
            time.sleep(_RESTART_PAUSE_SECONDS * 2**restarts)
    return attempt()
