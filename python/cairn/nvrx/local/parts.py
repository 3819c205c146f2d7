"""The parts that a rank holds, its own and replicas: each is a checkpoint of Cairn in a directory of its own.

A part is whole or not there: it is written, synced and committed as every checkpoint of Cairn, and every byte has a
checksum. The name of the directory says iteration, rank, number of ranks, and the attempt: a second attempt to save an
iteration has another name, and leftovers of the first are no obstacle to it.
"""

import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

from cairn import _engine
from cairn._calls.arguments import Call
from cairn._calls.load import load
from cairn._calls.save import save_now
from cairn._state.torch_codes import DTYPES
from cairn.checkpoint import Checkpoint, TensorInfo, verify
from cairn.errors import Corrupt, Error
from cairn.nvrx.local.stored_state import STRUCTURE, is_tensor_key, part_of, state_of

_log = logging.getLogger("cairn")
_NAME = re.compile(r"iter_(\d{7,18})_(\d{1,9})of(\d{1,9})_([0-9a-f]{16})", re.ASCII)


class Part(NamedTuple):
    """A rank's part of the state of an iteration. `attempt`: 16 hexadecimal digits, equal for all parts of a save."""

    iteration: int
    rank: int
    ranks: int
    attempt: str

    @property
    def directory(self) -> str:
        """The name of the directory."""
        return f"iter_{self.iteration:07}_{self.rank}of{self.ranks}_{self.attempt}"

    @classmethod
    def of(cls, directory: str) -> "Part | None":
        """Returns the part of a directory's name; None for another name."""
        match = _NAME.fullmatch(directory)
        if match is None:
            return None
        part = cls(int(match[1]), int(match[2]), int(match[3]), match[4])
        return part if part.directory == directory and part.rank < part.ranks else None


def held_parts(folder: Path) -> list[Part]:
    """Returns the parts in `folder` that were committed. Their bytes are not read."""
    return [part for part in _all_parts(folder) if (folder / part.directory / _engine.metadata_name(None)).is_file()]


def _all_parts(folder: Path) -> list[Part]:
    if not folder.is_dir():
        return []
    found = (Part.of(entry.name) for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink())
    return [part for part in found if part is not None]


def write_parts(states: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Writes the stored form of each part into its directory, synced, in this process alone."""
    for directory, state in states:
        save_now(state, Call(directory, planner=DefaultSavePlanner(flatten_state_dict=False), no_dist=True))


def damage_of(folder: Path, part: Part) -> Exception | None:
    """Reads every byte of a part, and returns the first damage."""
    try:
        problems = verify(folder / part.directory).problems
    except (Error, OSError) as error:
        return error
    return problems[0] if problems else None


def read_part(folder: Path, part: Part, allow_pickle: bool | None) -> Any:
    """Returns the state of a part, with tensors on the CPU. Every byte is checked, and no code of the file runs without
    `allow_pickle`.

    Raises Corrupt, NotFound, and UnsafeContent with key and class for a value that is not plain.
    """
    directory = folder / part.directory
    checkpoint = Checkpoint(directory)
    entries: dict[str, Any] = {key: _target(checkpoint, key) for key in checkpoint}
    if STRUCTURE not in entries:
        raise Corrupt("this is no local checkpoint", key=STRUCTURE, file=str(directory))
    load(
        entries,
        checkpoint_id=directory,
        planner=DefaultLoadPlanner(flatten_state_dict=False),
        no_dist=True,
        allow_pickle=allow_pickle,
        verify="full",
    )
    structure = entries.pop(STRUCTURE)
    if tuple(part_of(structure)) != part:
        raise Corrupt(
            "the directory holds another part of the local checkpoint than its name says",
            file=str(directory),
            expected=str(tuple(part)),
            actual=str(part_of(structure)),
        )
    return state_of(structure, entries, checkpoint.info(STRUCTURE).length)  # type: ignore[union-attr]


def _target(checkpoint: Checkpoint, key: str) -> torch.Tensor | None:
    """Returns a new tensor for a tensor of the checkpoint, and None for a value."""
    info = checkpoint.info(key)
    if not isinstance(info, TensorInfo) or not is_tensor_key(key):
        return None
    if info.nbytes > sum(chunk.length for chunk in info.chunks):  # before memory is taken for bytes that can't exist
        raise Corrupt(f"the file holds less of '{key}' than its shape {info.shape}", key=key)
    dtype = DTYPES[_engine.DTYPE_NAMES.index(info.dtype)]
    return torch.empty(info.shape, dtype=dtype, requires_grad=info.requires_grad)


def remove_parts(folder: Path, parts: Sequence[Part]) -> None:
    """Removes the directories of parts. A failure is logged."""
    for part in parts:
        directory = folder / part.directory
        try:
            (directory / _engine.metadata_name(None)).unlink(missing_ok=True)  # from here on it is no part
            shutil.rmtree(directory)
        except OSError as error:
            _log.warning("an old local checkpoint can't be removed: %s", error)


def outdated_parts(folder: Path, saved: Part) -> list[Part]:
    """Returns the parts of `folder` that the save of `saved` has replaced, unfinished ones included."""
    return [
        part
        for part in _all_parts(folder)
        if part.iteration < saved.iteration or (part.iteration == saved.iteration and part.attempt != saved.attempt)
    ]


def parts_of_save(folder: Path, saved: Part) -> list[Part]:
    """Returns the parts of `folder` that belong to the save of `saved`, unfinished ones included."""
    return [part for part in _all_parts(folder) if (part.iteration, part.attempt) == (saved.iteration, saved.attempt)]
