"""The wait for a collective of torch: a polling loop, in which Python handles signals, with or without a deadline."""

import time
from typing import Any

_PAUSE_SECONDS_MIN = 20e-6
_PAUSE_SECONDS_MAX = 5e-3


def wait_for_work(work: Any, timeout_secs: float | None = None, pause_seconds_max: float = _PAUSE_SECONDS_MAX) -> bool:
    """Returns True when `work`, a ``torch.distributed.Work``, is complete, and raises the failure of the collective.

    Returns False after `timeout_secs`. During ``Work.wait()`` Python could not handle a signal.
    `pause_seconds_max`: the longest pause between two looks at `work`.
    """
    deadline = None if timeout_secs is None else time.monotonic() + timeout_secs
    pause = _PAUSE_SECONDS_MIN
    while not work.is_completed():
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, pause_seconds_max)
    work.wait()
    return True
