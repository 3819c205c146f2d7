"""GroupStore: the key-value store of a process group, for the background threads of a CheckpointManager."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import torch.distributed as dist


class GroupStore:
    """Texts by key. The engine's threads call the methods: set() in one thread, the others in a second.

    The waits use a connection of their own: a client of a TCPStore does one call at a time, and torch uses the group's
    client too.
    """

    def __init__(self, group: Any) -> None:
        members: Any = dist.group.WORLD if group is None else group
        self._store = cast("Any", dist.distributed_c10d._get_process_group_store(members))
        try:
            self._waits = self._store.clone()
        except (AttributeError, NotImplementedError, RuntimeError):  # a store without connections
            self._waits = self._store

    def set(self, key: str, value: str) -> None:
        """Sets a key."""
        self._store.set(key, value)

    def wait(self, keys: Sequence[str], seconds: float) -> list[str] | None:
        """Returns the values when all keys are set; None after `seconds`."""
        if seconds > 0:
            try:
                self._waits.wait(list(keys), timedelta(seconds=seconds))
            except (dist.DistStoreError, RuntimeError):
                if not self._waits.check(list(keys)):  # raises if the store is gone
                    return None
        elif not self._waits.check(list(keys)):
            return None
        return [value.decode() for value in self._waits.multi_get(list(keys))]

    def remove(self, key: str) -> None:
        """Removes a key."""
        self._waits.delete_key(key)
