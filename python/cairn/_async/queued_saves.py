"""Asynchronous saves with a planner, a storage or a stager that the engine does not know, in threads.

1. The caller's stager stages. A failure on one rank fails all ranks, and no save is made.
2. A thread waits for the staged state, and for the previous save. If all ranks have staged, the ranks save; otherwise
   all ranks fail. The thread's collectives run on a process group of Cairn's own, because the caller may use its group
   at the same time.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import torch.distributed as dist

from cairn._async import pending_saves
from cairn._async.pending_saves import Follower, PendingSave, SaveFuture
from cairn._directory import real_path
from cairn._process import ProcessPart, part
from cairn._ranks.checkpoint_exceptions import as_checkpoint_exceptions
from cairn._ranks.owned_group import OwnedGroup
from cairn._ranks.ranks import Ranks
from cairn.progress import Progress

_GENERATIONS = 2  # saves at a time


class SaveQueue:
    """The saves of the ranks of one process group, in their order."""

    def __init__(self, owned: OwnedGroup | None = None) -> None:
        """`owned`: the group of the saves' collectives. None: there is no other rank."""
        self._owned = owned
        self._saves: list[SaveFuture] = []

    def group_instead_of(self, given: Any) -> Any:
        """The group on which the saves talk, for the caller's group."""
        return given if self._owned is None else self._owned.group

    def stage(self, callers: Ranks, follower: Follower, work: Callable[[], Any]) -> Any:
        """Step 1, on the group of `callers`, in the caller's turn: the result of the stager's `work`.

        Waits while too many saves have not ended. The follower is started.
        """
        with callers.all_or_none("staging"):
            pending_saves.raise_unretrieved()
            running = [save for save in self._saves if not save.done()]
            if len(running) >= _GENERATIONS:
                pending_saves.await_end(running[-_GENERATIONS])
            staged = work()
            follower.start()
            return staged

    def enqueue(
        self, own: Ranks, directory: str, staged: Any, follower: Follower, save: Callable[[Any], Any]
    ) -> PendingSave:
        """Step 2, on the group of `own`: `save` with `staged`, the staged state or a future of it."""
        upload = SaveFuture(lambda: Progress(_phase_of(pending), 0, 0))
        pending = PendingSave(real_path(directory), Future(), upload, follower.turn)
        pending.staging.set_running_or_notify_cancel()
        before = self._saves[-1] if self._saves else None
        self._saves = [*(save for save in self._saves if not save.done()), upload]

        def wait_until_staged() -> Any:
            try:
                state = staged.result() if isinstance(staged, Future) else staged
            except BaseException as error:
                pending.staging.set_exception(error)
                raise
            pending.staging.set_result(None)
            return state

        def agree_and_save() -> Any:
            with as_checkpoint_exceptions() as here:
                here.rank = own.rank
                # A rank that went away by itself would leave the others in the save's collectives.
                with own.all_or_none("staging"):
                    try:
                        state = wait_until_staged()
                    finally:
                        if before is not None:  # until then the group carries the messages of that save
                            pending_saves.await_end(before)
                return save(state)

        def work() -> None:
            try:
                with self._in_use():
                    upload.set_result(agree_and_save())
            except BaseException as error:
                upload.set_exception(error)

        follower.follow(pending, work)
        return pending

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """In the block the queue and its group live on, although the caller may have released his group."""
        yield


def _phase_of(save: PendingSave) -> str:
    if save.upload.done():
        return "ended"
    return "writing" if save.staging.done() else "staging"


class _SaveQueues(ProcessPart):
    """The queues of this process. A queue goes with the caller's group: when torch and the caller have released it."""

    def __init__(self) -> None:
        self.without_group = SaveQueue()
        self.by_group: weakref.WeakKeyDictionary[Any, SaveQueue] = weakref.WeakKeyDictionary()


def queue_for(group: Any, no_dist: bool) -> SaveQueue:
    """The queue of the ranks of `group` (None: all ranks of the job). All of them call this in the same order."""
    queues = part(_SaveQueues)
    if no_dist or not dist.is_available() or not dist.is_initialized():
        return queues.without_group
    given: Any = dist.group.WORLD if group is None else group
    if given not in queues.by_group:
        ranks = dist.get_process_group_ranks(given)
        queues.by_group[given] = SaveQueue(OwnedGroup(ranks) if len(ranks) > 1 else None)
    return queues.by_group[given]
