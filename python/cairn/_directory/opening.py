"""Opens a checkpoint by the engine. The error for a directory without a checkpoint names the call that finds the
newest."""

import contextlib
import os
import warnings
from collections.abc import Iterator

from cairn import _engine
from cairn._directory.location import metadata_name
from cairn.errors import NotFound
from cairn.warnings import DamageWarning

_Directory = str | os.PathLike[str] | bytes


def open_checkpoint(directory: _Directory, rank: int | None = None, name: str | None = None) -> _engine.Checkpoint:
    """Opens the checkpoint in `directory`, or the checkpoint that `rank` saved alone there. `name` is the name of the
    metadata file, if not ``.metadata``. Raises the engine's errors."""
    with naming_latest(directory):
        checkpoint = _engine.open(os.fsencode(directory), name or metadata_name(rank))
    warn_of_damage(checkpoint)
    return checkpoint


def open_to_load(directory: _Directory, rank: int | None = None, name: str | None = None) -> _engine.Checkpoint:
    """Opens as open_checkpoint, but of a large checkpoint decodes only what each load needs. The caller calls
    warn_of_damage() after the load."""
    with naming_latest(directory):
        return _engine.open(os.fsencode(directory), name or metadata_name(rank), "load")


def open_to_inspect(directory: _Directory) -> _engine.Checkpoint:
    """Opens as open_to_load, but a later save of this process does not go on with the plan of the checkpoint."""
    with naming_latest(directory):
        return _engine.open(os.fsencode(directory), metadata_name(None), "inspect")


def warn_of_damage(checkpoint: _engine.Checkpoint) -> None:
    """Issues a DamageWarning if a part of the checkpoint was damaged, and another part was read in its place."""
    if checkpoint.damage is not None:
        warnings.warn(checkpoint.damage, DamageWarning, stacklevel=2)


@contextlib.contextmanager
def naming_latest(directory: _Directory) -> Iterator[None]:
    """Adds the next step to the error about a directory that holds no checkpoint, but directories with checkpoints.

    The engine lists the directories in ``actual``; only this layer knows Python's calls.
    """
    try:
        yield
    except NotFound as error:
        if error.file != metadata_name(None) or error.actual is None:
            raise
        place = os.fsdecode(directory)
        raise NotFound(
            f"no checkpoint in '{place}' (no {error.file}). It holds {error.actual}: did you mean "
            f"cairn.latest({place!r})?",
            **error.place,
        ) from None
