"""Errors as the callers of DCP expect them: a ``CheckpointException`` with the failures of each rank."""

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any, cast

from torch.distributed.checkpoint.api import CheckpointException

from cairn.errors import Error


@contextlib.contextmanager
def as_checkpoint_exceptions() -> Iterator[None]:
    """Turns every cairn.Error into one that is also a CheckpointException, whose failures name it as that of rank 0."""
    try:
        yield
    except Error as error:
        if isinstance(error, CheckpointException):
            raise
        raise _combined(error) from (error.__cause__ or None)


_classes: dict[type[Error], type[Error]] = {}  # by the class that they extend


def _class_of(kind: type[Error]) -> type[Error]:
    """`kind` and CheckpointException in one: as an Exception it is caught by what catches `kind`."""

    if kind in _classes:
        return _classes[kind]

    def reduce(self: Any) -> tuple[Any, ...]:
        return _rebuild, (kind, self.message, self.place, self.failures)

    members = {
        "__reduce__": reduce,
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
        "__qualname__": kind.__name__,
    }
    _classes[kind] = cast(type[Error], type(kind.__name__, (kind, CheckpointException), members))
    return _classes[kind]


def _combined(error: Error) -> Error:
    summary = traceback.extract_tb(error.__traceback__)
    for frame in summary:  # code objects, which Python 3.13 keeps here, can't be pickled
        if hasattr(frame, "_code"):
            object.__setattr__(frame, "_code", None)
    return _rebuild(type(error), error.message, error.place, {0: (error, summary)})


def _rebuild(kind: type[Error], message: str, place: dict[str, Any], failures: dict[int, Any]) -> Error:
    combined = _class_of(kind)(message, **place)
    combined._failures = failures  # type: ignore[attr-defined]
    return combined
