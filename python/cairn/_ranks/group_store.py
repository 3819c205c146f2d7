"""GroupStore: the key-value store of a process group, for the background threads of a CheckpointManager."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch.distributed as dist

_Result = TypeVar("_Result")


class GroupStore:
    """Texts by key. The engine's threads call the methods: set() in one thread, the others in a second.

    Each thread uses a connection of its own: a client of a TCPStore does one call at a time, and torch uses the group's
    client too. A connection that has failed is replaced before the thread's next call.
    """

    def __init__(self, group: Any) -> None:
        members: Any = dist.group.WORLD if group is None else group
        self._store = cast("Any", dist.distributed_c10d._get_process_group_store(members))
        self._sets = _Client(self._store)
        self._looks = _Client(self._store)

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


class _Client:
    """A connection to a store, for one thread."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._connection: Any = None

    def call(self, work: Callable[[Any], _Result]) -> _Result:
        """Returns ``work(connection)``."""
        if self._connection is None:
            try:
                self._connection = self._store.clone()
            except dist.DistError:
                raise
            except (AttributeError, RuntimeError):  # a store without connections
                self._connection = self._store
        try:
            return work(self._connection)
        except RuntimeError:
            self._connection = None
            raise
