"""GroupStore: the key-value store of a process group, for the background threads of a CheckpointManager."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch.distributed as dist

_Result = TypeVar("_Result")


class GroupStore:
    """Texts by key. Two threads of the engine call the methods.

    The store has connections of its own, one for set() and one for the other calls: a client of a TCPStore does one
    call at a time, and torch uses the group's client too. A connection that has failed is replaced before the next
    call. `timeout_seconds` is of each connection: the group's own time-out may be half an hour.
    """

    def __init__(self, group: Any, timeout_seconds: float = 10.0) -> None:
        members: Any = dist.group.WORLD if group is None else group
        store = cast("Any", dist.distributed_c10d._get_process_group_store(members))
        first = _clone_of(store)
        if first is not store:
            first.set_timeout(timedelta(seconds=max(timeout_seconds, 1.0)))  # of its clones too
        self._sets = _Client(first)
        self._looks = _Client(first)

    def set(self, key: str, value: str) -> None:
        """Sets a key."""
        self._sets.call(lambda store: store.set(key, value))

    def get(self, keys: list[str]) -> list[str] | None:
        """Returns the values if all keys are set. Does not wait: a timed wait of a TCPStore writes to the log."""
        if not self._looks.call(lambda store: store.check(keys)):
            return None
        return [value.decode() for value in self._looks.call(lambda store: store.multi_get(keys))]

    def remove(self, key: str) -> None:
        """Removes a key."""
        self._looks.call(lambda store: store.delete_key(key))


def _clone_of(store: Any) -> Any:
    """Returns another connection to the store; `store` itself if it has no connections."""
    try:
        return store.clone()
    except dist.DistError:
        raise
    except (AttributeError, RuntimeError):
        return store


class _Client:
    """A connection to a store. Two threads may call; a failure of one replaces the connection of both."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._connection: Any = None

    def call(self, work: Callable[[Any], _Result]) -> _Result:
        """Returns ``work(connection)``."""
        connection = self._connection
        if connection is None:
            connection = self._connection = _clone_of(self._store)
        try:
            return work(connection)
        except RuntimeError:
            self._connection = None
            raise
