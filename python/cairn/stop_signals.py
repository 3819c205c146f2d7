"""ignore_stop_signals: keeps the signals of a stop from the worker processes of a rank."""

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cairn import _engine
from cairn._torch_names import modules

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


def ignore_stop_signals(worker: int = 0, *, signals: Sequence[int] = _STOPS) -> None:
    """Takes the signals of a stop from the parent process alone, from now on: for worker processes of a rank.

    ::

        loader = DataLoader(data, num_workers=4, worker_init_fn=cairn.ignore_stop_signals)

    torchrun, Slurm and a terminal send a signal to all processes of a rank. A worker that ends at the signal fails the
    step of the rank, before :class:`cairn.CheckpointManager` can save. The parent still ends the worker.

    `worker`: the number of the worker, which DataLoader passes; it is not used. Raises InvalidArgument for a signal
    that can't be caught.
    """
    _engine.ignore_stop_signals(list(signals))


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
