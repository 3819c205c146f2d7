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
    step of the rank, before :class:`cairn.CheckpointManager` can save. The rank still ends the worker. Workers must
    have started: one that still imports its modules, with the start method "spawn", and the server of the start method
    "forkserver" end at the signal. With "fork" a worker is ready at once.

    `worker`: the number of the worker, which DataLoader passes; it is not used. Raises InvalidArgument for a signal
    that can't be caught.
    """
    import multiprocessing  # not at the import of Cairn: in a worker it is there

    rank = multiprocessing.parent_process()  # the parent of a worker of a fork server is the server
    _engine.ignore_stop_signals(list(signals), 0 if rank is None else rank.pid or 0)


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
