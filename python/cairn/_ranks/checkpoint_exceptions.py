"""Errors in DCP's form: a ``CheckpointException`` with the failures of each rank."""

import contextlib
import functools
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from torch.distributed.checkpoint.api import CheckpointException

from cairn._ranks.engine_errors import reported_save, set_reported_save
from cairn._ranks.exception_record import exception_of, trace_of
from cairn.errors import Error, ExceptionRecord

Failure: TypeAlias = tuple[BaseException, traceback.StackSummary]


@dataclass
class Here:
    """The rank of failures that name no rank."""

    rank: int = 0


@contextlib.contextmanager
def as_checkpoint_exceptions() -> Iterator["Here"]:
    """Turns every cairn.Error into an error that is also a CheckpointException, with the failures by rank.

    The caller sets ``rank`` of the yielded object as soon as the rank is known.
    """
    here = Here()
    try:
        yield here
    except Error as error:
        if isinstance(error, CheckpointException):
            raise
        raise _combined(error, here.rank) from (error.__cause__ or None)


@functools.cache
def _class_of(kind: type[Error]) -> type[Error]:
    """Returns a class that derives from `kind` and CheckpointException, and is caught as either."""

    def reduce(self: Any) -> tuple[Any, ...]:
        return _rebuild, (kind, self.message, self.place, self.failures)

    members = {
        "__reduce__": reduce,
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
        "__qualname__": kind.__name__,
    }
    return cast(type[Error], type(kind.__name__, (kind, CheckpointException), members))


def failure_of(error: BaseException) -> Failure:
    """Returns a rank's failure in the form of CheckpointException."""
    summary = traceback.extract_tb(error.__traceback__)
    for frame in summary:  # Python 3.13 keeps code objects here, which can't be pickled
        if hasattr(frame, "_code"):
            object.__setattr__(frame, "_code", None)
    return error, summary


def failures_of(error: Error) -> dict[int, Failure]:
    """Returns the failures by rank, as the ranks reported them. Empty if a single process failed alone."""
    return {cause.rank or 0: _told(cause, record) for cause, record in error.causes}


def with_failures(error: Error, failures: dict[int, Failure]) -> Error:
    """Returns `error` as an error that is a CheckpointException too, with `failures`."""
    combined = _rebuild(type(error), error.message, error.place, failures)
    combined._bare_message = error._bare_message
    return combined


def _combined(error: Error, here: int) -> Error:
    failures = failures_of(error)
    return with_failures(error, failures or {here if error.rank is None else error.rank: failure_of(error)})


def _told(cause: Error, record: ExceptionRecord | None) -> Failure:
    """Returns the failure of a rank: the exception in `record`, or `cause` itself for a failure of the engine."""
    if record is None:
        return failure_of(cause)
    exception = exception_of(record, cause.place)
    if isinstance(exception, Error):
        exception._bare_message = cause._bare_message
    set_reported_save(exception, reported_save(cause))
    return exception, trace_of(record)


def _rebuild(kind: type[Error], message: str, place: dict[str, Any], failures: dict[int, Any]) -> Error:
    combined = _class_of(kind)(message, **place)  # type: ignore[arg-type]  # mypy takes the hash of an instance
    combined._failures = failures  # type: ignore[attr-defined]
    return combined
