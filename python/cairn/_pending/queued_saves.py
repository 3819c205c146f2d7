"""Asynchronous saves with a planner, a storage or a stager that the engine does not know, in threads.

1. The caller's stager stages. A failure on one rank fails all ranks, and no save is made.
2. A thread waits for the staged state, and for the previous save. If all ranks have staged, the ranks save; otherwise
   all ranks fail. The thread's collectives run on a process group of Cairn's own, because the caller may use its group
   at the same time.
"""

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch.distributed as dist

from cairn._directory.real_path import real_path
from cairn._failures.checkpoint_exceptions import as_checkpoint_exceptions
from cairn._pending import pending_saves
from cairn._pending.pending_saves import Follower, PendingSave, SaveFuture
from cairn._ranks.ranks import Ranks
from cairn.progress import Progress

_GENERATIONS = 2  # the number of saves under way at a time

_groups: dict[int, tuple[Any, Any]] = {}  # by id of a process group: the group, and Cairn's group of equal ranks
_queues: defaultdict[int, list[SaveFuture]] = defaultdict(list)  # by id of Cairn's group


def stage(ranks: Ranks, own: Ranks, follower: Follower, work: Callable[[], Any]) -> Any:
    """Runs step 1 on the group of `ranks`, the caller's group, which is free during the call. Returns the result of
    `work`.

    Waits while too many saves are under way. Starts the follower.
    """
    with ranks.all_or_none("staging"):
        pending_saves.raise_untold()
        queue = [save for save in _queues[id(own.group)] if not save.done()]
        if len(queue) >= _GENERATIONS:
            pending_saves.await_end(queue[-_GENERATIONS])
        staged = work()
        follower.start()
        return staged


def enqueue(own: Ranks, directory: str, staged: Any, follower: Follower, save: Callable[[Any], Any]) -> PendingSave:
    """Starts step 2: `save` runs with the staged state. `staged` may be a future of the state."""
    upload = SaveFuture(lambda: Progress(_phase_of(pending), 0, 0))
    pending = PendingSave(real_path(directory), Future(), upload, follower.turn)
    pending.staging.set_running_or_notify_cancel()
    queue = _queues[id(own.group)]
    before = queue[-1] if queue else None
    queue[:] = [*(save for save in queue if not save.done()), upload]

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
            # A rank that left alone would leave the remaining ranks in the save's collectives.
            with own.all_or_none("staging"):
                try:
                    state = wait_until_staged()
                finally:
                    if before is not None:  # until then the previous save uses Cairn's group
                        pending_saves.await_end(before)
            return save(state)

    def work() -> None:
        try:
            upload.set_result(agree_and_save())
        except BaseException as error:
            upload.set_exception(error)

    follower.follow(pending, work)
    return pending


def _phase_of(save: PendingSave) -> str:
    if save.upload.done():
        return "ended"
    return "writing" if save.staging.done() else "staging"


def group_of_our_own(group: Any, no_dist: bool) -> Any:
    """Returns a process group of the ranks of `group` for Cairn's use alone. All ranks call this function in one
    order."""
    if no_dist or not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1:
        return group
    given: Any = dist.group.WORLD if group is None else group
    if id(given) not in _groups:
        ranks = dist.get_process_group_ranks(given)
        _groups[id(given)] = (given, dist.new_group(ranks, backend="gloo", use_local_synchronization=True))
    return _groups[id(given)][1]


def forget() -> None:
    """In a forked child: drops the groups and queues, which belong to the parent."""
    _groups.clear()
    _queues.clear()
