"""The place of a checkpoint: a directory of this machine's file systems, or the URL of another storage."""

import os
from pathlib import Path

from cairn import _engine
from cairn.errors import InvalidArgument, Unsupported

_PathLike = str | os.PathLike[str]

_FILE_SCHEMES = ("file://", "local://")  # as in fsspec


def local_directory(checkpoint_id: _PathLike) -> _PathLike | None:
    """Returns the directory that `checkpoint_id` names; None: the id is the URL of another storage.

    As in ``torch.distributed.checkpoint``, only text with "://" is a URL. ``file://`` and ``local://`` name
    directories, also relative ones and paths beginning with "~".
    """
    if not isinstance(checkpoint_id, str) or "://" not in checkpoint_id:
        return checkpoint_id
    for scheme in _FILE_SCHEMES:
        if checkpoint_id.startswith(scheme):
            return Path(checkpoint_id.removeprefix(scheme)).expanduser()
    return None


def metadata_name(rank: int | None) -> str:
    """Returns the name of a checkpoint's metadata file; `rank`: of the checkpoint that the rank saved alone."""
    return _engine.metadata_name(rank)


def existing_directory(place: _PathLike) -> _PathLike:
    """As local_directory(), for functions that read only directories. Raises Unsupported for another storage.

    Raises InvalidArgument for None, the result of ``cairn.latest`` if there is no checkpoint.
    """
    if place is None:
        raise InvalidArgument("the directory is None; cairn.latest() returns None if it finds no checkpoint")
    directory = local_directory(place)
    if directory is None:
        raise Unsupported(
            f"'{place}' is the URL of a storage that only torch's fsspec reader and writer reach; copy the checkpoint "
            f"to a directory first",
            expected="a directory",
            actual=str(place),
        )
    return directory
