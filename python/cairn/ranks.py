"""Who takes part in a save or a load: the ranks of a process group together, or this process alone."""

import contextlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch.distributed as dist

from cairn.errors import Error, InvalidArgument, Unavailable
from cairn.failures import failure_of


class Ranks:
    """Those who call together. `options` are keywords for the engine's save and load.

    A process is alone if `no_dist` is set, if torch has no process group, or if the group has no other rank. Raises
    InvalidArgument if it is not in the group itself.
    """

    def __init__(self, process_group: Any = None, no_dist: bool = False) -> None:
        self.rank = 0
        self.options: dict[str, Any] = {}
        if no_dist or not dist.is_available() or not dist.is_initialized():
            return
        self.rank = dist.get_rank(process_group)
        if self.rank < 0:  # to go on alone would replace what the ranks of the group save
            raise InvalidArgument("this process is not a rank of the process group", rank=dist.get_rank())
        if dist.get_world_size(process_group) > 1:
            from cairn.process_group import collectives_of

            self.options = {"collectives": collectives_of(process_group)}

    @property
    def are_many(self) -> bool:
        """Whether there are others."""
        return bool(self.options)

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
                if isinstance(error, Error):
                    abandon(error.code, error.message, b"", **self.options)
                abandon("kInvalidArgument", f"{type(error).__name__}: {error}", _attachment(error), **self.options)
            except Unavailable as lost:  # the group has failed as well: our own failure is what matters
                if not lost.causes:
                    raise error from None
                raise
            except Error as told:
                if not isinstance(error, Exception):  # Ctrl-C and its like are for this rank alone
                    raise error from None
                raise told from error


def _attachment(error: BaseException) -> bytes:
    """What the other ranks get of an exception, as `failures` reads it."""
    failure = failure_of(error)
    try:
        return pickle.dumps(failure)
    except Exception:  # an exception may hold anything; the text goes in any case
        return b""
