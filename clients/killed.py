"""A job that is killed and started anew: the second and the third part of a trial, each a job of torchrun of its own.

A round trains a step and saves into a directory of its own.

1. ``killed``: a job goes from round to round, with Cairn. From round 3 on steps of optimizers are counted; at the
   second step, in the middle of the client's training, all ranks end by SIGKILL. A job without an optimizer is killed
   in round 4.
2. ``resumed``: a job in new processes, with other weights, loads the newest checkpoint of the killed job and goes the
   remaining rounds. Its state must then equal the state of a job that nothing has interrupted, bit by bit.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

import cairn

ROUNDS = 5
COUNTED_FROM = 3  # the round in which the counted steps begin
STEPS_BEFORE_THE_KILL = 2
KILLED_BY = 4  # the round that the killed job never saves


class Job(Protocol):
    """The parts of a trial's job that a round uses."""

    def train(self, steps: int) -> None: ...
    def save(self, path: Path) -> None: ...


def save_rounds(job: Job, run: Path, first: int, last: int) -> None:
    run.mkdir(exist_ok=True)
    for number in range(first, last + 1):
        job.train(1)
        job.save(run / f"round-{number}")


def note_of(folder: Path, rank: int) -> Path:
    """The file in which a rank notes its process before its kill."""
    return folder / f"killed-{rank}.json"


class Death:
    """Kills this rank at a step of an optimizer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._steps_left = STEPS_BEFORE_THE_KILL
        self._round = 0
        register_optimizer_step_post_hook(self._count)

    def begin_round(self, number: int) -> None:
        self._round = number

    def _count(self, *_: Any) -> None:
        self._steps_left -= self._round >= COUNTED_FROM
        if self._steps_left == 0:
            self.strike()

    def strike(self) -> NoReturn:
        """Ends the process when all ranks have come here: torchrun ends the ranks that are left by SIGTERM."""
        note_of(self._folder, dist.get_rank()).write_text(json.dumps({"process": os.getpid(), "round": self._round}))
        deadline = time.monotonic() + 60
        while not all(note_of(self._folder, rank).exists() for rank in range(dist.get_world_size())):
            assert time.monotonic() < deadline, "another rank has not come to the step of the kill"
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("alive after SIGKILL")


def train_until_killed(job: Job, folder: Path) -> NoReturn:
    death = Death(folder)
    for number in range(1, KILLED_BY):
        death.begin_round(number)
        save_rounds(job, folder / "run", number, number)
    death.begin_round(KILLED_BY)
    job.train(1)
    death.strike()


def parts_of(directory: Path) -> list[Path]:
    """The checkpoints of DCP's format in or below the directory of a round: one for each part that the client saves."""
    return sorted(file.parent for file in directory.rglob(".metadata") if not file.parent.name.startswith(".cairn-"))


def newest_round(run: Path) -> int:
    """Returns the newest round with all checkpoints of a round, all of which `cairn.verify` finds whole.

    A round that is one checkpoint is found by `cairn.latest`.
    """
    if parts_of(run / "round-1") == [run / "round-1"]:
        found = cairn.latest(run)
        assert found is not None, f"no checkpoint in {run}"
        return int(Path(found).name.removeprefix("round-"))
    wanted = len(parts_of(run / "round-1"))
    for number in range(KILLED_BY, 0, -1):
        parts = parts_of(run / f"round-{number}")
        if len(parts) >= wanted and all(not cairn.verify(part).problems for part in parts):
            return number
    raise AssertionError(f"no whole round in {run}")


def agreed_newest_round(run: Path) -> int:
    """Returns the newest round as rank 0 sees it: a writer process of the killed job may complete a save meanwhile."""
    number = [newest_round(run) if dist.get_rank() == 0 else 0]
    dist.broadcast_object_list(number)
    return number[0]
