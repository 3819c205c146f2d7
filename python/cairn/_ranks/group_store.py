"""GroupStore: the key-value store of a process group, for the background threads of a CheckpointManager."""

from typing import Any, cast

import torch.distributed as dist


class GroupStore:
    """Texts by key. The engine's threads call the methods: set() in one thread, the others in a second.

    The second thread uses a connection of its own: a client of a TCPStore does one call at a time, and torch uses the
    group's client too.
    """

    def __init__(self, group: Any) -> None:
        members: Any = dist.group.WORLD if group is None else group
        self._store = cast("Any", dist.distributed_c10d._get_process_group_store(members))
        try:
            self._looks = self._store.clone()
        except (AttributeError, NotImplementedError, RuntimeError):  # a store without connections
            self._looks = self._store

    def set(self, key: str, value: str) -> None:
        """Sets a key."""
        self._store.set(key, value)

    def get(self, keys: list[str]) -> list[str] | None:
        """Returns the values if all keys are set. Does not wait: a timed wait of a TCPStore writes to the log."""
        if not self._looks.check(keys):
            return None
        return [value.decode() for value in self._looks.multi_get(keys)]

    def remove(self, key: str) -> None:
        """Removes a key."""
        self._looks.delete_key(key)
