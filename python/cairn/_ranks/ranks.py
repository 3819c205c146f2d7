"""The participants of a save or a load: the ranks of a process group together, or this process alone."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from cairn import _engine
from cairn._ranks.checkpoint_exceptions import failures_of, with_failures
from cairn._ranks.engine_errors import reported_save
from cairn._ranks.exception_record import Reason, message_of, record_of
from cairn.errors import Error, InvalidArgument, Unavailable


class Ranks:
    """The ranks of a call. `options` are keywords for the engine's save and load; `members` are the ranks' numbers in
    the job.

    A process is alone if `no_dist` is set, if torch has no process group, or if the group has no other rank. Raises
    InvalidArgument if this process is not in the group.
    """

    def __init__(self, process_group: Any = None, no_dist: bool = False) -> None:
        self.rank = 0
        self.count = 1
        self.group = process_group
        self.members: tuple[int, ...] = ()  # empty for a process alone
        self.options: dict[str, Any] = {}
        if no_dist or not dist.is_available() or not dist.is_initialized():
            return
        self.rank = dist.get_rank(process_group)
        if self.rank < 0:  # continuing alone would replace the checkpoint of the group's ranks
            raise InvalidArgument("this process is not a rank of the process group", rank=dist.get_rank())
        self.count = dist.get_world_size(process_group)
        if self.count > 1:
            from cairn._ranks.process_group import collectives_of

            self.options = {"collectives": collectives_of(process_group)}
            self.members = tuple(
                dist.get_process_group_ranks(dist.group.WORLD if process_group is None else process_group)
            )

    @property
    def are_many(self) -> bool:
        """Whether the call has other ranks."""
        return bool(self.options)

    def meet(self) -> None:
        """Returns when all ranks have called meet()."""
        if self.are_many:
            self.options["collectives"].barrier()

    def smallest(self, numbers: Sequence[int]) -> list[int]:
        """Returns, for each place, the smallest of the ranks' numbers. One all-reduce of as many integers."""
        if not self.are_many:
            return list(numbers)
        from cairn._ranks.process_group import GroupCalls

        return GroupCalls(self.group).smallest(numbers)

    @contextlib.contextmanager
    def all_fail_together(self, step: str) -> Iterator[None]:
        """As all_or_none(), with a single all-reduce of an integer if no rank has failed."""
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failure = error
        (well,) = self.smallest([int(failure is None)])
        if not well:
            with self.all_or_none(step):
                if failure is not None:
                    raise failure

    @contextlib.contextmanager
    def preparing(self, abandon: Callable[..., NoReturn] | None) -> Iterator[None]:
        """Wraps the work of a rank before it joins the remaining ranks: a failure here fails all ranks, without leaving
        a rank waiting.

        `abandon` is the engine's abandon_save or abandon_load; None if the ranks do not wait for each other. In DCP, a
        rank with a failing ``state_dict()`` leaves the remaining ranks waiting.
        """
        try:
            yield
        except BaseException as error:
            if not self.are_many or abandon is None:
                raise
            try:
                abandon(reason_of(error), **self.options)
            except Unavailable as lost:  # the group has failed as well; this rank's own failure is the cause
                if not lost.causes:
                    raise error from None
                raise
            except Error as common:
                if not isinstance(error, Exception):  # Ctrl-C and SystemExit are for this rank alone
                    raise error from None
                raise common from error

    @contextlib.contextmanager
    def all_or_none(self, step: str) -> Iterator[None]:
        """Wraps work of every rank: at the end of the block, the ranks exchange outcomes, and all fail if a rank has
        failed.

        Raises CheckpointException with the failures by rank, and the exception is a cairn.Error too if the first
        failure is. A process alone raises its own exception. If all ranks have failed, each rank raises its own
        exception unless that is a cairn.Error: torch runs these blocks outside of its driver, and its callers expect
        RuntimeError for a checkpoint_id that no storage accepts. `step` names the block in the exception.
        """
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failure = error
        if self.are_many:
            self._agree(step, failure)
        if failure is not None:
            raise failure

    def _agree(self, step: str, failure: BaseException | None) -> None:
        """Raises the common error of all ranks if a rank has failed; returns on a rank that must raise its own Ctrl-C
        or exception."""
        try:
            _engine.agree(() if failure is None else reason_of(failure), **self.options)
        except Error as common:
            failures = failures_of(common)
            if not failures and failure is None:  # the group itself has failed
                raise
            if not failures or not (failure is None or isinstance(failure, Exception)):
                return
            if len(failures) == self.count and not isinstance(failure, Error):
                return
            first = failures[min(failures)][0]
            if isinstance(first, Error):
                raise with_failures(first, failures) from failure
            raise CheckpointException(step, failures) from failure


def reason_of(error: BaseException) -> Reason:
    """Returns the parts of an exception for the remaining ranks. Never fails, also if the exception's own methods
    do."""
    record = record_of(error)
    report = {"earlier_save": reported_save(error)}
    if isinstance(error, Error):
        return error.code, message_of(error), error.place | report, record
    code = "kInvalidArgument" if isinstance(error, Exception) else "kCancelled"
    name, text = type(error).__name__, record.text
    return code, f"{name}: {text}" if text else name, {"error_number": record.error_number} | report, record
