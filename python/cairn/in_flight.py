"""What is there to resume from, and who is still writing: without torch."""

import math
import os
import warnings
from typing import Literal, NamedTuple

from cairn import _engine
from cairn._directory.location import existing_directory
from cairn.errors import InvalidArgument
from cairn.progress import Progress

_WAIT_MAX = 10**9


class SaveWriter(NamedTuple):
    """A process that writes for a save. `rank` is None for the coordinator, or the only rank."""

    rank: int | None
    host: str
    pid: int
    state: Literal["alive", "dead", "unknown"]  # unknown: on another host or in another container
    seconds_since_sign: float  # of life; there is one every few seconds
    is_readable: bool  # False: its lease can't be read, or is not complete; then nothing else is known
    progress: Progress | None  # as of the last sign, as the following; None: the lease does not say
    pending_call: str  # the call into the storage that had lasted longest; empty: none was under way
    seconds_without_progress: float  # for how long that call had not returned: what the deadlines are for


class SaveInFlight(NamedTuple):
    """A save that is under way in a directory, or died there."""

    save_id: str
    job_id: str
    save_number: int  # counts the saves of a job
    verdict: Literal["committed", "failed"] | None
    is_leftover: bool  # nobody works on it any more: the next save removes it
    writers: tuple[SaveWriter, ...]  # the coordinator first
    failures: dict[int | None, str]  # by rank: why it failed
    is_readable: bool  # False: only another user may enter its folder; then nothing but the save id is known
    directory: str  # of the checkpoint: the one that was asked for, or one in it


def latest(root: str | os.PathLike[str], *, wait: float = 0.0, rank: int | None = None) -> str | None:
    """The directory of the newest checkpoint in `root` itself or in the directories in it; None if there is none.

    Waits up to `wait` seconds for saves in flight: a writer may have outlived its trainer and be about to commit. What
    `rank` saved alone counts too, if it is given.

    Cairn's checkpoints are ordered by the start of their job, then by the number of the save within the job: saves that
    overlap, copies and changed times of files do not matter. Checkpoints of stock torch record neither; they are
    ordered by the time of their ``.metadata``, then by the last number in the directory's name. Of the newest of both
    kinds, the one with the later time of ``.metadata`` is returned.

    A checkpoint whose data files are not all there does not count. A RuntimeWarning says why each checkpoint that may
    be newer than the result was passed over, and that `root` does not exist: before a first start this is no error.
    InvalidArgument if `root` is not a directory, Unavailable if it can't be listed.
    """
    if not 0 <= wait <= _WAIT_MAX:
        raise InvalidArgument("wait is a number of seconds", expected=f"0 to {_WAIT_MAX}", actual=repr(wait))
    if rank is not None and not 0 <= rank < 2**32:
        raise InvalidArgument("rank is the number of a rank", actual=repr(rank))
    found, passed_over = _engine.latest(os.fsencode(existing_directory(root)), math.ceil(wait * 1000), rank)
    for reason in passed_over:
        warnings.warn(reason, RuntimeWarning, stacklevel=2)
    return None if found is None else os.fsdecode(found)


def saves_in_flight(root: str | os.PathLike[str]) -> tuple[SaveInFlight, ...]:
    """The saves that are under way in `root` or in the directories in it, and those that died there.

    `root` is a checkpoint or a folder of checkpoints, as for :func:`latest` and for ``cairn status``. Those in `root`
    itself come first, by number, then those of each directory in `root`, in the order of the directories' names.
    Nothing is changed. NotFound if there is no `root`. A directory in `root` that can't be read is left out.
    """
    return tuple(
        SaveInFlight(
            save_id,
            job_id,
            number,
            verdict,
            is_leftover,
            tuple(
                SaveWriter(*writer[:6], Progress(*writer[6]) if writer[6] else None, *writer[7:]) for writer in writers
            ),
            dict(failures),
            is_readable,
            os.fsdecode(directory),
        )
        for (
            save_id,
            job_id,
            number,
            verdict,
            is_leftover,
            writers,
            failures,
            is_readable,
            directory,
        ) in _engine.saves_in_flight(os.fsencode(existing_directory(root)))
    )
