"""CheckpointWriter: saves the state of a single rank, and returns when the checkpoint is durable.

1. The rank's files are written and synced.
2. `WriterHook.pre_commit` is called. If pre_commit raises, nothing is committed, and the previous checkpoint stays.
3. The rank's checkpoint is committed: one rename over ``__{rank}.metadata``.
4. With a barrier, the ranks wait for each other.
5. `WriterHook.post_commit` is called.
"""

import abc
import functools
import os
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from cairn import _engine
from cairn._async import pending_saves
from cairn._settings import is_single_writer, save_deadlines
from cairn._state.described import DescribedState
from cairn._state.notes import notes_text
from cairn._state.saved_tree import with_shape
from cairn.checkpointer.argument_order import path_and_state
from cairn.checkpointer.barriers import Barrier
from cairn.checkpointer.rank_info import STATE_DICT, RankInfo
from cairn.errors import Cancelled, InvalidArgument


class WriterHook(abc.ABC):
    """Callbacks before and after a commit. Both get the path and the keywords of ``write``."""

    @abc.abstractmethod
    def pre_commit(self, path: str, **kwargs: Any) -> None:
        """Called when the rank's files are written, before the commit. An exception keeps the old checkpoint in
        place."""

    @abc.abstractmethod
    def post_commit(self, path: str, **kwargs: Any) -> None:
        """Called when the rank's checkpoint is in place; with a barrier, when every rank's checkpoint is."""


@dataclass
class CheckpointWriterConfig:
    """`write_barrier_timeout_secs`: how long, in seconds, a rank waits at a :class:`Barrier`."""

    write_barrier_timeout_secs: int = 600


class CheckpointWriter:
    """Writes the state of a rank. One thread at a time may use a writer.

    `barrier` is a :class:`Barrier`, or any object with ``execute_barrier()``, for example a barrier of torch's class,
    which has only its own deadline.
    """

    def __init__(
        self,
        config: CheckpointWriterConfig,
        rank_info: RankInfo,
        barrier: Any = None,
        commit_hook: WriterHook | None = None,
    ) -> None:
        # checked before any save, not after a commit
        if barrier is not None and not callable(getattr(barrier, "execute_barrier", None)):
            raise InvalidArgument("a barrier must have a method execute_barrier()", actual=type(barrier).__name__)
        self._config = config
        self._rank_info = rank_info
        self._barrier = barrier
        self._commit_hook = commit_hook

    def write(
        self,
        path: str,
        state_dict: STATE_DICT,
        **kwargs: Any,
    ) -> Future[None] | None:
        """Saves `state_dict` in directory `path` by the five steps above. `kwargs` go to the hook; `notes` of them, a
        dict as for :func:`cairn.save`, is stored too.

        Returns None when all steps are done. Raises cairn.Error, also if the storage hangs
        (:func:`cairn.configure_saves`), and the exceptions of the hook and the barrier. After step 3 the checkpoint is
        in place even if a later step raises.
        """
        path, state_dict = path_and_state(path, state_dict)
        hook = self._commit_hook
        before = None if hook is None else functools.partial(hook.pre_commit, path, **kwargs)
        _save_rank(path, state_dict, self._rank_info.global_rank, before, kwargs.get("notes"))
        if isinstance(self._barrier, Barrier):
            self._barrier.execute_within(self._config.write_barrier_timeout_secs)
        elif self._barrier is not None:
            self._barrier.execute_barrier()
        if hook is not None:
            hook.post_commit(path, **kwargs)
        return None

    def close(self) -> None:
        """For subclasses with resources to release."""


def _save_rank(
    directory: str,
    state_dict: Mapping[Any, Any],
    rank: int,
    before_commit: Callable[[], None] | None,
    notes: Mapping[str, Any] | None,
) -> None:
    raised: list[BaseException] = []

    def goes_well() -> bool:
        try:
            if before_commit is not None:
                before_commit()
        except BaseException as error:  # an exception must not cross the engine
            raised.append(error)
        return not raised

    pending_saves.wait_for(directory)  # saves into one directory commit in their order
    described = DescribedState(with_shape(state_dict), from_devices=True)
    options = {
        "alone_as_rank": rank,
        "before_commit": goes_well if before_commit else None,
        "deadlines": save_deadlines(),
        "single_writer": is_single_writer(),
        "notes": notes_text(notes),
    }
    try:
        _, _, _, texts = _engine.save(os.fsencode(directory), described.native, **options)
    except Cancelled:
        if raised:
            raise raised.pop() from None
        raise
    for text in texts:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
