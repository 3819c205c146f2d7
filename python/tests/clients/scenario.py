"""The phases of a client's test, for clients that leave the training loop to the user.

`Witness` keeps a state under the name of each phase:

"saved"     the job saves twice into one directory and trains between the saves
"resumed"   a new job loads the checkpoint; both jobs train on, to "uninterrupted" and "continued"
"merged"    the client merges the checkpoint into one file
"without"   Cairn is uninstalled: the stock client loads Cairn's checkpoint and saves the state as "stock"
"switched"  Cairn is installed: the job loads "stock" and saves over "stock"
"resharded" a different number of ranks loads Cairn's checkpoint and saves over "stock"
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from witness import Witness

import cairn


class Job(Protocol):
    """A model in training."""

    def train(self, steps: int) -> None: ...
    def save(self, path: Path) -> None: ...
    def load(self, path: Path) -> None: ...
    def merge(self, path: Path, into: Path) -> dict[str, Any]: ...
    def state(self) -> dict[str, Any]: ...


MakeJob = Callable[[int], Job]  # from a seed
Act = Callable[[MakeJob, Path, Witness], None]


def play(make_job: MakeJob, *more: Act) -> None:
    """Runs ``program.py start FOLDER``, with the acts `more`, or ``program.py reshard FOLDER``.

    The reshard runs with a different number of ranks.
    """
    folder = Path(sys.argv[2])
    witness = Witness(folder)
    acts: dict[str, tuple[Act, ...]] = {"start": (start, *more), "reshard": (reshard,)}
    for act in acts[sys.argv[1]]:
        act(make_job, folder, witness)
    witness.leave()


def start(make_job: MakeJob, folder: Path, witness: Witness) -> None:
    ours, stock = folder / "ours", folder / "stock"
    job = make_job(0)
    job.train(2)
    job.save(ours)
    job.train(1)
    job.save(ours)
    witness.note("saved", job.state())
    job.train(2)
    witness.note("uninterrupted", job.state())

    job = make_job(1)
    job.load(ours)
    witness.note("resumed", job.state())
    job.train(2)
    witness.note("continued", job.state())
    witness.note("merged", job.merge(ours, folder / "merged"))

    cairn.uninstall()
    job = make_job(2)
    job.load(ours)
    job.save(stock)
    witness.note("without", job.state())
    cairn.install()
    job = make_job(3)
    job.load(stock)
    job.save(stock)
    witness.note("switched", job.state())


def reshard(make_job: MakeJob, folder: Path, witness: Witness) -> None:
    job = make_job(4)
    job.load(folder / "ours")
    job.save(folder / "stock")
    witness.note("resharded", job.state())
