"""Where a checkpoint is: in a directory of this machine's file systems, or behind a URL of another storage."""

import os
from pathlib import Path

from cairn.errors import Unsupported

_PathLike = str | os.PathLike[str]

_FILE_SCHEMES = ("file://", "local://")  # as fsspec reads them


def local_directory(checkpoint_id: _PathLike) -> _PathLike | None:
    """The directory that `checkpoint_id` names; None if it is the URL of another storage.

    As in ``torch.distributed.checkpoint``, only text that contains "://" is a URL. ``file://`` and ``local://`` name
    directories, relative ones and those that begin with "~" too.
    """
    if not isinstance(checkpoint_id, str) or "://" not in checkpoint_id:
        return checkpoint_id
    for scheme in _FILE_SCHEMES:
        if checkpoint_id.startswith(scheme):
            return Path(checkpoint_id.removeprefix(scheme)).expanduser()
    return None


def metadata_name(rank: int | None) -> str:
    """The file with the metadata of a checkpoint; `rank`: of the one that saved alone."""
    return ".metadata" if rank is None else f"__{rank}.metadata"


def existing_directory(place: _PathLike) -> _PathLike:
    """As local_directory(), for functions that read directories only. Raises Unsupported for another storage."""
    directory = local_directory(place)
    if directory is None:
        raise Unsupported(
            f"'{place}' is the URL of a storage that only torch's fsspec reader and writer reach; copy the checkpoint "
            f"to a directory first",
            expected="a directory",
            actual=str(place),
        )
    return directory
