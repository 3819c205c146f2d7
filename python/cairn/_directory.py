"""The directory of a checkpoint: the directory that an argument names, opening, and reading that a save may disturb.

The place of a checkpoint is a directory of this machine's file systems, the URL of a prefix in a bucket, which the
engine reads, or the URL of a storage that only torch's code reaches. The error for a
directory without a checkpoint names the call that finds the newest.
"""

import contextlib
import itertools
import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from cairn import _engine
from cairn.errors import Corrupt, InvalidArgument, NotFound, Replaced, UnsafeContent, Unsupported
from cairn.warnings import DamageWarning

_PathLike = str | os.PathLike[str]
_Directory = str | os.PathLike[str] | bytes
_Result = TypeVar("_Result")

_FILE_SCHEMES = ("file://", "local://")  # as in fsspec
_BUCKET_SCHEMES = ("s3://", "gs://")  # of the stores that the engine reaches
_REAL_PATH_SECONDS = 10.0

# Hostile metadata may name few bytes very often: all tensors together may have so many times the bytes of the files, or
# so many bytes.
_TIMES_MAX = 64
_BYTES_FREE = 64 << 20


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


def is_bucket_url(place: object) -> bool:
    """Returns whether `place` is the URL of a prefix in a bucket that the engine reaches."""
    return isinstance(place, str) and place.startswith(_BUCKET_SCHEMES)


def readable_place(checkpoint_id: _PathLike) -> _PathLike | None:
    """As local_directory(), for reads: the URL of a bucket too, which stays as it is."""
    return checkpoint_id if is_bucket_url(checkpoint_id) else local_directory(checkpoint_id)


def metadata_name(rank: int | None) -> str:
    """Returns the name of a checkpoint's metadata file; `rank`: of the checkpoint that the rank saved alone."""
    return _engine.metadata_name(rank)


def existing_place(place: _PathLike) -> _PathLike:
    """As readable_place(). Raises Unsupported for a storage that the engine does not reach.

    Raises InvalidArgument for None, the result of ``cairn.latest`` if there is no checkpoint.
    """
    return place if is_bucket_url(place) else existing_directory(place)


def existing_directory(place: _PathLike) -> _PathLike:
    """As existing_place(), for functions that work only in directories of this machine."""
    if place is None:
        raise InvalidArgument("the directory is None; cairn.latest() returns None if it finds no checkpoint")
    directory = local_directory(place)
    if directory is None and is_bucket_url(place):
        raise Unsupported(
            f"'{place}' is the URL of a bucket, and this function works in directories",
            expected="a directory",
            actual=str(place),
        )
    if directory is None:
        raise Unsupported(
            f"'{place}' is the URL of a storage that only torch's fsspec reader and writer reach; copy the checkpoint "
            f"to a directory first",
            expected="a directory",
            actual=str(place),
        )
    return directory


def real_path(path: str | os.PathLike[str]) -> str:
    """Returns the absolute path without links, which is equal for all paths to a directory. The path has its links if
    the storage does not answer within ten seconds.

    A link on hanging storage can't be followed, and the system call can't be cancelled. Therefore a daemon thread makes
    the call, and the interpreter ends without waiting for the thread.
    """
    import queue  # `import cairn` does not need it

    given = Path(path).absolute()
    found: queue.SimpleQueue[str] = queue.SimpleQueue()
    try:
        threading.Thread(target=lambda: found.put(os.path.realpath(given)), name="cairn-path", daemon=True).start()
        return found.get(timeout=_REAL_PATH_SECONDS)
    except (RuntimeError, queue.Empty):  # no thread could be started, or no answer came
        return os.path.normpath(given)


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


def restarting(attempt: Callable[[], _Result]) -> _Result:
    """Returns the result of `attempt`; calls `attempt` again if a save replaced the checkpoint during the attempt."""
    for restarts in itertools.count():
        try:
            return attempt()
        except Replaced:
            pause = _engine.pause_before_restart(restarts)
            if pause is None:
                raise
        time.sleep(pause)
    raise AssertionError("unreachable")


class SizeLimit:
    """A bound for the memory of tensors that a checkpoint's metadata describes, checked before the memory is taken: the
    bytes that reads of the checkpoint in `place` may still take."""

    def __init__(self, checkpoint: _engine.Checkpoint, place: str) -> None:
        self._checkpoint = checkpoint
        self._place = place
        self._bytes_left: int | None = None

    def add(self, key: str, sizes: tuple[int, ...], item_bytes: int, held: int) -> None:
        """Counts a box of `sizes` of the tensor under `key`, whose chunks have `held` bytes in the files.

        Raises Corrupt if the chunks can't hold the box. A file of ``torch.save`` may repeat elements of a tensor, and
        an item that went through a stream transform may be compressed: these may hold fewer bytes than the box. Raises
        UnsafeContent for boxes that together have too many bytes.
        """
        may_hold_less = self._checkpoint.format in ("torch", "torch_checkpointing") or self._checkpoint.has_transforms
        if math.prod(sizes) > held and not may_hold_less:
            raise Corrupt(
                f"the chunks of '{key}' hold less than the metadata says",
                key=key,
                expected=f"{math.prod(sizes)} elements",
                actual=f"{held} bytes",
            )
        if self._bytes_left is None:
            self._bytes_left = max(_BYTES_FREE, _TIMES_MAX * self._bytes_of_files())
        self._bytes_left -= math.prod(sizes) * item_bytes
        if self._bytes_left < 0:
            raise UnsafeContent(
                f"the tensors of the checkpoint in '{self._place}' name the bytes of its files very often; read single "
                "keys by cairn.open(), and parts of a tensor by its read()",
                key=key,
                expected=f"at most {_TIMES_MAX} times the bytes of the files",
            )

    def _bytes_of_files(self) -> int:
        total = 0
        if is_bucket_url(self._place):
            return sum(self._checkpoint.file_bytes(file) for file in self._checkpoint.files)
        place = Path(self._place)
        for path in [place] if place.is_file() else [place / file for file in self._checkpoint.files]:
            with contextlib.suppress(OSError):  # the read names the missing file
                total += path.stat().st_size
        return total
