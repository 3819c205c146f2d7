"""State that all calls of this process share: one object, and one fork hook that renews it in a forked child.

A module that needs such state defines a class of :class:`ProcessPart` and asks :func:`part` for the process's object of
that class. The modules themselves hold no state that a forked child must not inherit.
"""

import os
import threading
from typing import TypeVar, cast

_Part = TypeVar("_Part", bound="ProcessPart")


class ProcessPart:
    """State of which a process has one object. The constructor takes no arguments."""

    def in_child(self: _Part) -> _Part:
        """The object for a child made by fork: a new one, unless the class says otherwise.

        Called in the child, on the parent's object, before any other code of the child. A lock of the parent's object
        may be held by a thread that the child lacks.
        """
        return type(self)()


class _Process:
    """The parts of this process, by class, in the order of their first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[type[ProcessPart], ProcessPart] = {}

    def part(self, kind: type[_Part]) -> _Part:
        part = self._parts.get(kind)
        if part is None:
            with self._lock:
                part = self._parts.setdefault(kind, kind())
        return cast(_Part, part)

    def renew(self) -> None:
        """In a forked child."""
        self._lock = threading.Lock()
        self._parts = {kind: part.in_child() for kind, part in self._parts.items()}


_process = _Process()
os.register_at_fork(after_in_child=_process.renew)


def part(kind: type[_Part]) -> _Part:
    """This process's object of the class `kind`, made at the first call. Any thread may call this."""
    return _process.part(kind)
