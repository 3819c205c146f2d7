"""A small training loop on one core, and how many steps a second it makes."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator

import torch

WIDTH = 64
LAYERS = 4
BATCH = 16


class TrainingLoop:
    """Steps of a millisecond or so, most of it Python: it shows when somebody else holds Python's lock."""

    def __init__(self) -> None:
        layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()) for _ in range(LAYERS)]
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, foreach=False)
        self.batch = torch.randn(BATCH, WIDTH)

    def accumulate(self) -> None:
        """Forward and backward, which leave the parameters as they are."""
        self.model(self.batch).square().mean().backward()

    def step(self) -> None:
        self.accumulate()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def steps_while(self, going: Callable[[], bool]) -> tuple[int, float]:
        """Steps from now until `going` is seen to be over, at least one, and the seconds that they took."""
        count, start = 0, time.perf_counter()
        while count == 0 or going():
            self.step()
            count += 1
        return count, time.perf_counter() - start

    def rate_for(self, seconds: float) -> float:
        """Steps per second, from now on for so long."""
        end = time.perf_counter() + seconds
        count, taken = self.steps_while(lambda: time.perf_counter() < end)
        return count / taken


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """The calling thread computes on one core, the first; threads that run already, or come later, on any.

    What is started inside inherits the one core: start nothing there.
    """
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
