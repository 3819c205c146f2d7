"""A small training loop on one core, and its rate in steps per second."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator

import torch

WIDTH = 64
LAYERS = 4
BATCH = 16


class TrainingLoop:
    """Steps of about a millisecond, mostly Python.

    The rate falls when a second thread holds Python's interpreter lock.
    """

    def __init__(self) -> None:
        layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()) for _ in range(LAYERS)]
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, foreach=False)
        self.batch = torch.randn(BATCH, WIDTH)

    def accumulate(self) -> None:
        """Runs forward and backward. The parameters do not change."""
        self.model(self.batch).square().mean().backward()

    def step(self) -> None:
        self.accumulate()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def steps_while(self, going: Callable[[], bool]) -> tuple[int, float]:
        """Trains while `going()` is true, at least one step. Returns the number of steps and their seconds."""
        count, start = 0, time.perf_counter()
        while count == 0 or going():
            self.step()
            count += 1
        return count, time.perf_counter() - start

    def rate_for(self, seconds: float) -> float:
        """Returns the steps per second over the next `seconds`."""
        end = time.perf_counter() + seconds
        count, taken = self.steps_while(lambda: time.perf_counter() < end)
        return count / taken


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """Confines the calling thread to the first core. Threads that run already, or start outside, use any core.

    A process or thread started inside the block inherits the core restriction: start nothing inside.
    """
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
