"""The checkpoints from which a job can resume, and the processes that still write; needs no torch."""

import math
import os
import warnings
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cairn import _engine
from cairn._directory import existing_place, is_bucket_url
from cairn._torch_names import modules
from cairn.errors import InvalidArgument, NotFound
from cairn.progress import Progress

_WAIT_MAX = 10**9


class SaveInFlightWriter(NamedTuple):
    """A process that writes for a save. `rank` is None for the coordinator, or the only rank."""

    rank: int | None
    host: str
    pid: int
    state: Literal["alive", "dead", "unknown"]  # unknown: on another host or in another container
    seconds_since_sign: float  # since the last sign of life; a process gives a sign every few seconds
    is_readable: bool  # False: the lease is unreadable or incomplete, and nothing more is known
    progress: Progress | None  # at the last sign of life, as are the next two fields; None: the lease holds no progress
    pending_call: str  # the longest-running call into the storage; empty: no call was running
    seconds_without_progress: float  # how long that call had run; the save's deadlines limit this time


class SaveInFlight(NamedTuple):
    """A save in flight in a directory, or an interrupted save whose files are still in the directory."""

    save_id: str
    job_id: str
    save_number: int  # counts the saves of a job
    decision: Literal["committed", "failed"] | None
    is_leftover: bool  # no process works on the save any more: cairn.clean() removes its files
    writers: tuple[SaveInFlightWriter, ...]  # the coordinator first
    failures: dict[int | None, str]  # the reason of the failure, by rank
    is_readable: bool  # False: only another user may enter the save's folder, and only the save id is known
    directory: str  # the checkpoint's: the requested directory, or a directory in it


class ListedCheckpoint(NamedTuple):
    """A checkpoint, or a safetensors model that Cairn has saved, below a root."""

    directory: str
    step: int | None  # in the directory's name, as for :func:`cairn.latest`
    state: Literal["complete", "incomplete", "unreadable"]  # incomplete: a data file is missing, or has a wrong size
    reason: str | None  # of a checkpoint that is not complete
    is_newest: bool  # the result of latest()
    format: Literal["dcp", "safetensors"]


def latest(
    root: str | os.PathLike[str], *, wait: float = 0.0, rank: int | None = None, process_group: Any = None
) -> str | None:
    """Returns the directory of the newest checkpoint in `root` itself or in the directories in `root`; None: no
    checkpoint.

    Waits up to `wait` seconds for saves in flight: a writer may have outlived its trainer and be about to commit. If
    `rank` is given, checkpoints that `rank` saved alone count too. If `process_group` is given, all ranks of the group
    call together: the first rank looks, and all ranks have its answer, or its error. Without it, each call looks by
    itself.

    Cairn's checkpoints are ordered by the start of their job, then by the number of the save within the job.
    Overlapping saves, copies and changed file times do not affect the order. Checkpoints of stock torch record neither;
    they are ordered by the time of their ``.metadata``, then by the step in the directory's name: the number after the
    last "step" in the name, or else the last number. Between the newest checkpoint of Cairn and the newest of stock
    torch, the later time of ``.metadata`` decides.

    If no directory holds a checkpoint of DCP, not even an unusable one, the result is the directory of the newest
    safetensors model that Cairn has saved, in the same order. Models of other programs do not count.

    A damaged checkpoint does not count: one whose metadata differs from its checksum or can't be decoded, or one with a
    missing or short data file. The bytes of the data files are not read: :func:`verify` reads them. A RuntimeWarning
    gives the reason for each skipped checkpoint that may be newer than the result. Before a first start `root` is
    missing: the result is None, and the logger ``cairn`` gets a line at INFO, from rank 0. :func:`checkpoints` lists
    all.

    Raises InvalidArgument if `root` is not a directory, and Unavailable if `root` can't be listed. Raises Unavailable
    too if the system refuses access to a directory or file that may be of a newer checkpoint, or if the access times
    out: a job must not start from an older checkpoint for this reason.
    """
    if not 0 <= wait <= _WAIT_MAX:
        raise InvalidArgument("wait must be a number of seconds", expected=f"0 to {_WAIT_MAX}", actual=repr(wait))
    _check_rank(rank)
    options: dict[str, Any] = {}
    if process_group is not None:
        from cairn._ranks.ranks import Ranks  # imports torch

        options = Ranks(process_group).options
    if rank is not None and options:
        raise InvalidArgument(
            "rank and process_group exclude each other: a group has one answer", actual=f"rank={rank}"
        )
    place = existing_place(root)
    found, passed_over = _engine.latest(os.fsencode(place), math.ceil(wait * 1000), rank, **options)
    if found is None and not _is_there(place):
        _log_first_start(place)
        return None
    for reason in passed_over:
        warnings.warn(reason, RuntimeWarning, stacklevel=2)
    return None if found is None else os.fsdecode(found)


def _is_there(root: str | os.PathLike[str]) -> bool:
    if not is_bucket_url(root):
        return os.path.lexists(root)
    try:
        _engine.checkpoints(os.fsencode(root), None)
    except NotFound:  # no object is below
        return False
    return True


def _log_first_start(root: str | os.PathLike[str]) -> None:
    # The launchers set these variables. torch, which knows the rank of this process, may be missing.
    if not any(os.environ.get(variable, "0") != "0" for variable in ("RANK", "SLURM_PROCID")):
        import logging  # a slow import that `import cairn` does not need

        logging.getLogger("cairn").info("no checkpoint to resume from: there is no directory '%s'", os.fspath(root))


def checkpoints(root: str | os.PathLike[str], *, rank: int | None = None) -> tuple[ListedCheckpoint, ...]:
    """Returns all checkpoints in `root` itself and in the directories in `root`, in the order of :func:`latest`: the
    newest first, then the models that Cairn has saved.

    Each checkpoint is checked as :func:`latest` checks its result, and a checkpoint that is not complete has a reason.
    A damaged checkpoint without a readable order has its place by the time of its ``.metadata``. If `rank` is given,
    checkpoints that `rank` saved alone are listed too. Directories without ``.metadata`` are no checkpoints:
    :func:`saves_in_flight` lists the interrupted saves. Raises NotFound if `root` does not exist, InvalidArgument if
    `root` is not a directory, and Unavailable if `root` can't be listed.
    """
    _check_rank(rank)
    return tuple(
        ListedCheckpoint(os.fsdecode(directory), step, state, reason, is_newest, form)
        for directory, step, state, reason, is_newest, form in _engine.checkpoints(
            os.fsencode(existing_place(root)), rank
        )
    )


def _check_rank(rank: int | None) -> None:
    if rank is not None and not 0 <= rank < 2**32:
        raise InvalidArgument("rank must be a rank's number", expected="0 to 2**32 - 1", actual=repr(rank))


def saves_in_flight(root: str | os.PathLike[str]) -> tuple[SaveInFlight, ...]:
    """Returns the saves that are in flight, or were interrupted, in `root` and in the directories in `root`.

    `root` is a checkpoint, a safetensors model, or a folder of both, as for :func:`latest` and for ``cairn status``.
    The saves in `root` itself come first, by number, then the saves of each directory in `root`, in the order of the
    directories' names. The call changes nothing. Raises NotFound if `root` does not exist. A directory in `root` that
    can't be read is left out.
    """
    return tuple(
        SaveInFlight(
            save_id,
            job_id,
            number,
            decision,
            is_leftover,
            tuple(
                SaveInFlightWriter(*writer[:6], Progress(*writer[6]) if writer[6] else None, *writer[7:])
                for writer in writers
            ),
            dict(failures),
            is_readable,
            os.fsdecode(directory),
        )
        for (
            save_id,
            job_id,
            number,
            decision,
            is_leftover,
            writers,
            failures,
            is_readable,
            directory,
        ) in _engine.saves_in_flight(os.fsencode(existing_place(root)))
    )


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
