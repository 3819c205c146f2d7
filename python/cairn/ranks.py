"""Who takes part in a save or a load: the ranks of a process group together, or this process alone."""

import contextlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from cairn.errors import Error, InvalidArgument, Unavailable
from cairn.failures import failure_of, with_failures


class Ranks:
    """Those who call together. `options` are keywords for the engine's save and load; `members` their ranks in the job.

    A process is alone if `no_dist` is set, if torch has no process group, or if the group has no other rank. Raises
    InvalidArgument if it is not in the group itself.
    """

    def __init__(self, process_group: Any = None, no_dist: bool = False) -> None:
        self.rank = 0
        self.count = 1
        self.group = process_group
        self.members: tuple[int, ...] = ()  # of a process that is alone
        self.options: dict[str, Any] = {}
        if no_dist or not dist.is_available() or not dist.is_initialized():
            return
        self.rank = dist.get_rank(process_group)
        if self.rank < 0:  # to go on alone would replace what the ranks of the group save
            raise InvalidArgument("this process is not a rank of the process group", rank=dist.get_rank())
        self.count = dist.get_world_size(process_group)
        if self.count > 1:
            from cairn.process_group import collectives_of

            self.options = {"collectives": collectives_of(process_group)}
            self.members = tuple(
                dist.get_process_group_ranks(dist.group.WORLD if process_group is None else process_group)
            )

    @property
    def are_many(self) -> bool:
        """Whether there are others."""
        return bool(self.options)

    def meet(self) -> None:
        """Returns when all are here."""
        if self.are_many:
            self.options["collectives"].barrier()

    @contextlib.contextmanager
    def preparing(self, abandon: Callable[..., NoReturn] | None) -> Iterator[None]:
        """For what a rank does on its own before it joins the others: if it fails, they fail too and do not wait.

        `abandon` is the engine's abandon_save or abandon_load; None if they do not wait for one another. In DCP a rank
        whose ``state_dict()`` raises leaves the others waiting.
        """
        try:
            yield
        except BaseException as error:
            if not self.are_many or abandon is None:
                raise
            try:
                abandon(*_told(error), **self.options)
            except Unavailable as lost:  # the group has failed as well: our own failure is what matters
                if not lost.causes:
                    raise error from None
                raise
            except Error as told:
                if not isinstance(error, Exception):  # Ctrl-C and its like are for this rank alone
                    raise error from None
                raise told from error

    @contextlib.contextmanager
    def all_or_none(self) -> Iterator[None]:
        """For what every rank does on its own: at the end of the block all hear from all, and fail if one has failed.

        Raises CheckpointException with the failures by rank, which is a cairn.Error too if the first of them is one.
        """
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failure = error
        if self.are_many:
            attachment = b"" if failure is None else _attachment_of(failure)
            said = self.options["collectives"].all_gather(attachment)
            failures = {rank: pickle.loads(text) for rank, text in enumerate(said) if text}
            if failures and (failure is None or isinstance(failure, Exception)):
                first = min(failures)
                if isinstance(failures[first][0], Error):
                    raise with_failures(failures[first][0], failures) from failure
                raise CheckpointException("staging", failures) from failure
        if failure is not None:
            raise failure


_ATTACHMENT_BYTES_MAX = 64 << 10  # an exception may hold a tensor, and every rank gets that of every other


def _told(error: BaseException) -> tuple[str, str, dict[str, Any], bytes]:
    """What the other ranks get of an exception: code, text, place, and the exception itself as `failures` reads it.

    Never fails: its own text may.
    """
    if isinstance(error, Error):
        return error.code, error.message, error.place, b""
    code = "kInvalidArgument" if isinstance(error, Exception) else "kCancelled"
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    try:
        attachment = pickle.dumps(failure_of(error))
    except Exception:  # an exception may hold anything; the text goes in any case
        attachment = b""
    return code, text, {}, attachment if len(attachment) <= _ATTACHMENT_BYTES_MAX else b""


def _attachment_of(error: BaseException) -> bytes:
    """The failure for other ranks, pickled; if that can't be, what is known of it."""
    if isinstance(error, Error):
        return pickle.dumps(failure_of(error))
    _, text, _, attachment = _told(error)
    return attachment or pickle.dumps(failure_of(RuntimeError(text)))
