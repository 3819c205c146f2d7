"""OwnedGroup: a process group of Cairn's own, of some ranks of the job.

Torch names such a group after its ranks and after a count that may differ from rank to rank: the number of the groups
that this process has (until torch 2.14), or of those that it has ever made. Ranks with different names wait for each
other until the time-out, and a name that is used a second time finds the addresses of the first group in the job's
store. So Cairn gives the name: the ranks, and how many groups Cairn has made of these ranks in this job, which all of
them have made together.
"""

import contextlib
import functools
import hashlib
import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from cairn._process import ProcessPart, part


class _GroupCounts(ProcessPart):
    """How many groups this process has made of which ranks, by the job's default group: names begin anew with it."""

    def __init__(self) -> None:
        self.by_job: weakref.WeakKeyDictionary[Any, Counter[tuple[int, ...]]] = weakref.WeakKeyDictionary()


class OwnedGroup:
    """Destroyed on this rank when this object is released. The ranks make theirs in the same order, with equal lists of
    the job's ranks. `timeout`: of each collective; None: torch's default."""

    def __init__(self, ranks: Sequence[int], timeout: timedelta | None = None) -> None:
        counts = part(_GroupCounts).by_job.setdefault(dist.group.WORLD, Counter())
        counts[tuple(ranks)] += 1
        digest = hashlib.sha1(",".join(map(str, ranks)).encode(), usedforsecurity=False).hexdigest()
        with _named(f"cairn-{digest}-{counts[tuple(ranks)]}"):
            self.group: Any = dist.new_group(
                list(ranks), backend="gloo", timeout=timeout, use_local_synchronization=True
            )
        finalizer = weakref.finalize(self, _destroy, self.group, os.getpid())
        finalizer.atexit = False  # torch destroys what is left


def _destroy(group: Any, process: int) -> None:
    """Sends nothing to other ranks. A forked child has no threads of the group, and leaves the group alone."""
    if os.getpid() == process:
        with contextlib.suppress(ValueError, AssertionError):  # the caller has destroyed all groups
            dist.destroy_process_group(group)


class _GivenName(threading.local):
    """The name of the next groups of a thread; None: torch gives the name."""

    name: str | None = None


_given = _GivenName()


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """A group that this thread makes in the block has this name: ``new_group`` takes none from its caller."""
    _let_threads_name_groups()
    _given.name = name
    try:
        yield
    finally:
        _given.name = None


def _let_threads_name_groups() -> None:
    """Replaces torch's naming function once, by a function that differs only in threads with a given name.

    The function stays in place: if two threads put functions in place and take them away again, the first thread's
    function may stay for ever.
    """
    torchs = getattr(c10d, "_process_group_name", None)
    if torchs is None or hasattr(torchs, "__wrapped__"):
        return

    @functools.wraps(torchs)
    def name_of(*arguments: Any, **keywords: Any) -> Any:
        return torchs(*arguments, **keywords) if _given.name is None else _given.name

    vars(c10d)["_process_group_name"] = name_of
