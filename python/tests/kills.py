"""SIGKILL of a forked process that does one piece of work, at moments spread over the work."""

import contextlib
import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterator


class Worker:
    """A fork that calls `work` once, then waits to be killed."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._begun, begun = os.pipe()
        self._ended, ended = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                os.close(self._begun)
                os.close(self._ended)
                os.write(begun, b"x")
                work()
                os.write(ended, b"x")
                signal.pause()
            os._exit(1)
        os.close(begun)
        os.close(ended)

    def kill_after(self, seconds: float) -> None:
        """Kills the fork `seconds` after the begin of the work; after the end of the work for `inf`."""
        os.read(self._begun, 1)
        if math.isinf(seconds):
            assert os.read(self._ended, 1) == b"x", "the work has failed"
        else:
            time.sleep(seconds)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._begun)
        os.close(self._ended)


def duration_of(work: Callable[[], object]) -> float:
    """Returns the seconds that a fork takes for the work, with those of the fork itself."""
    begin = time.perf_counter()
    Worker(work).kill_after(math.inf)
    return time.perf_counter() - begin


def kill_at_moments(work: Callable[[], object], duration: float, count: int, seed: int) -> Iterator[int]:
    """Kills `count` workers, and yields the number of each: at the begin of the work, after its end, then at random.

    `duration` is that of `duration_of`. Random moments reach half a duration past the end.
    """
    chance = random.Random(seed)
    for number in range(count):
        Worker(work).kill_after((0.0, math.inf)[number] if number < 2 else chance.uniform(0, 1.5 * duration))
        yield number
