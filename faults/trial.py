"""A directory with saves during faults, and the promises that must hold for the directory at any time."""

import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from job import Job, Reply, require_success
from state import State, step_of, whole
from tally import Problem
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.api import CheckpointException

import cairn

_OTHERS = {"common.pt": b"of the trainer", "notes.distcp.txt": b"of nobody"}


class Trial:
    """Steps increase with every attempted save: no two saves write equal content."""

    def __init__(self, directory: Path, exists: bool = True) -> None:
        """With `exists`, makes the directory with foreign files; otherwise the directory does not exist."""
        self.directory = directory
        self._others = _OTHERS if exists else {}
        if exists:
            directory.mkdir()
        for name, data in self._others.items():
            (directory / name).write_bytes(data)
        self.step = 0  # of the last attempted save
        self.in_place: int | None = None  # the step found by the last `look`

    def next_step(self) -> int:
        self.step += 1
        return self.step

    def save(self, job: Job) -> list[Reply]:
        """Saves undisturbed: the save must succeed and be loaded, and leave no private files of earlier saves."""
        replies = self.save_beside(job)
        if self.litter():
            raise Problem(f"a save that nothing disturbs leaves litter: {self._litter_in_detail()}")
        return replies

    def save_beside(self, job: Job) -> list[Reply]:
        """Saves undisturbed while ranks of a foreign save may still live: files of the foreign save may stay."""
        job.start("save", self.directory, self.next_step())
        replies = job.await_all()
        require_success(replies, "a save that nothing disturbs")
        self.look({self.step}, "after a save that nothing disturbs")
        return replies

    def look(self, allowed: Collection[int | None], when: str) -> int | None:
        """Loads with Cairn and with stock torch, and returns the step; None if no checkpoint was ever saved."""
        by_cairn, by_torch = self._step(_load_with_cairn), self._step(load_with_torch)
        if by_cairn != by_torch:
            raise Problem(f"{when}: Cairn loads step {by_cairn}, stock torch {by_torch}")
        if by_cairn not in allowed:
            raise Problem(f"{when}: the checkpoint is of step {by_cairn}, not of {sorted(map(str, allowed))}")
        if by_cairn is not None and not cairn.verify(self.directory):
            raise Problem(f"{when}: cairn.verify finds {cairn.verify(self.directory)}")
        for name, data in self._others.items():
            if (self.directory / name).read_bytes() != data:
                raise Problem(f"{when}: {name}, which is none of Cairn's, has changed")
        self.in_place = by_cairn
        return by_cairn

    def _step(self, load: Callable[[State, Path], Any]) -> int | None:
        if not (self.directory / ".metadata").exists():
            return None
        state = whole(0)
        load(state, self.directory)
        return step_of(state)

    def litter(self) -> set[str]:
        """Returns the names in the directory beyond the checkpoint and the foreign files."""
        names = {path.name for path in self.directory.iterdir()} if self.directory.exists() else set()
        names -= self._others.keys()
        if ".metadata" in names:
            names -= {".metadata", *cairn.open(self.directory).files}
        return names

    def _litter_in_detail(self) -> list[str]:
        names = [path for name in self.litter() for path in (self.directory / name, *(self.directory / name).glob("*"))]
        return [str(path.relative_to(self.directory)) for path in names]


def _load_with_cairn(state: State, directory: Path) -> None:
    cairn.load(state, checkpoint_id=directory, no_dist=True)


def load_with_torch(state: State, directory: Path) -> None:
    """Loads in one process, without the warning about one process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            state_dict_loader.load(state, checkpoint_id=directory, no_dist=True)
        except CheckpointException as error:  # not derived from Exception
            raise Problem(f"stock torch can't load: {error}") from None
