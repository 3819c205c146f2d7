"""ExceptionRecord: an exception as plain data, from which another process rebuilds an exception.

Failures travel from rank to rank over the process group and in files that another user may be able to write. Therefore
a record holds only texts and numbers, and rebuilding runs no code that the record names: the class is looked up in a
fixed table, and no constructor of a foreign class is called.
"""

import builtins
import functools
import sys
import traceback
from typing import Any, TypeAlias

from cairn.errors import Error, ExceptionRecord, Frame, MissingKey, SystemFailure

_TEXT_CHARACTERS_MAX = 4000
_NAME_CHARACTERS_MAX = 200  # of names of classes, files and functions, and of source lines
_OUTER_FRAMES_MAX = 8  # frames kept from the beginning of a long trace
_INNER_FRAMES_MAX = 24  # frames kept from the end

# Code, message, place, record: the reason of a rank's failure, sent through the engine to the remaining ranks.
Reason: TypeAlias = tuple[str, str, dict[str, Any], ExceptionRecord | None]

_BUILTINS = {it.__name__ for it in vars(builtins).values() if isinstance(it, type) and issubclass(it, BaseException)}

# The classes that are rebuilt, by module. Exception groups are missing: a record does not hold the grouped exceptions.
_CLASSES: dict[str, frozenset[str]] = {
    "builtins": frozenset(_BUILTINS - {"BaseExceptionGroup", "ExceptionGroup"}),
    "cairn.checkpointer.barriers": frozenset({"BarrierTimeout"}),
    "cairn.checkpointer.checkpointer": frozenset({"MissingKeys"}),
    "cairn.checkpointer.selection": frozenset({"Mismatch"}),
    "cairn.checkpointer.writer_child": frozenset({"ProcessFailure", "ProcessTimeout"}),
    "cairn.errors": frozenset(
        {
            "Cancelled",
            "Corrupt",
            "InternalError",
            "InvalidArgument",
            "MissingKey",
            "NoSpace",
            "NotFound",
            "Replaced",
            "Superseded",
            "Unavailable",
            "UnsafeContent",
            "Unsupported",
            "UnusableDirectory",
        }
    ),
    "cairn.filesystem": frozenset({"MissingCheckpointId"}),
    "torch": frozenset({"AcceleratorError", "OutOfMemoryError"}),
    "torch.cuda": frozenset({"OutOfMemoryError"}),
    "torch.distributed": frozenset(
        {"DistBackendError", "DistError", "DistNetworkError", "DistStoreError", "QueueEmptyError"}
    ),
    "torch.distributed.checkpoint.api": frozenset({"CheckpointException"}),
}


def record_of(error: BaseException) -> ExceptionRecord:
    """Returns the record of an exception. Never fails, also when the exception's own methods do."""
    kind = type(error)
    number = error.errno if isinstance(error, OSError) and isinstance(error.errno, int) else 0
    return ExceptionRecord(
        _cut(f"{kind.__module__}.{kind.__qualname__}", _NAME_CHARACTERS_MAX),
        text_of(error),
        number if 0 <= number < 1 << 31 else 0,
        _frames_of(error),
    )


def text_of(error: BaseException) -> str:
    """Returns ``str(error)``, cut to a bounded length; empty if ``str()`` fails."""
    try:
        return _cut(str(error), _TEXT_CHARACTERS_MAX)
    except Exception:
        return ""


def message_of(error: Error) -> str:
    """Returns the message of `error`, cut to a bounded length, without what its attributes repeat."""
    return _cut(error._bare_message, _TEXT_CHARACTERS_MAX)


def exception_of(record: ExceptionRecord, place: dict[str, Any] | None = None) -> BaseException:
    """Returns an exception of the record's class, with the record's text.

    A class that is missing in the table, or not loaded here, becomes a RuntimeError with the class name and the text.
    `place` is for classes of cairn.errors: their ``place``.
    """
    kind = _class_named(record.class_name)
    if kind is None:
        return RuntimeError(f"{record.class_name}: {record.text}" if record.text else record.class_name)
    if issubclass(kind, Error):
        known = dict(place or {})
        if not issubclass(kind, SystemFailure):
            known.pop("error_number", None)
        if not issubclass(kind, MissingKey):
            known.pop("keys", None)
        return kind(record.text, **known)
    error = _filled(kind, record)
    if str(error) == record.text:
        return error
    return _filled(_with_own_text(kind), record)  # type: ignore[arg-type]  # mypy takes the hash of an instance


def trace_of(record: ExceptionRecord) -> traceback.StackSummary:
    """Returns the stack of the raise. Source lines come from the record; no named file is opened."""
    return traceback.StackSummary.from_list(
        [traceback.FrameSummary(file, line, function, line=text) for file, line, function, text in record.frames]
    )


def _frames_of(error: BaseException) -> list[Frame]:
    try:
        summary = list(traceback.extract_tb(error.__traceback__))
    except Exception:  # source files may hold anything
        return []
    if len(summary) > _OUTER_FRAMES_MAX + _INNER_FRAMES_MAX:
        summary = summary[:_OUTER_FRAMES_MAX] + summary[-_INNER_FRAMES_MAX:]
    cut = [[_cut(text or "", _NAME_CHARACTERS_MAX) for text in (it.filename, it.name, it.line)] for it in summary]
    return [(file, it.lineno or 0, function, line) for it, (file, function, line) in zip(summary, cut, strict=True)]


def _cut(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


def _class_named(class_name: str) -> type[BaseException] | None:
    module, _, name = class_name.rpartition(".")
    if name not in _CLASSES.get(module, ()):
        return None
    kind = getattr(sys.modules.get(module), name, None)
    return kind if isinstance(kind, type) and issubclass(kind, BaseException) else None


def _filled(kind: type[BaseException], record: ExceptionRecord) -> BaseException:
    """Makes an exception without calling its constructor: each class has a signature of its own."""
    error = kind.__new__(kind)
    error.args = (record.text,)
    if isinstance(error, OSError) and record.error_number:
        error.errno = record.error_number
    if kind.__name__ == "CheckpointException":
        error._failures = {}  # type: ignore[attr-defined]
    error.__dict__["_record"] = record
    return error


@functools.cache
def _with_own_text(kind: type[BaseException]) -> type[BaseException]:
    """Returns a subclass of `kind` with the record's text as ``str()``, for classes that compose ``str()`` from more
    than args."""
    members = {
        "__str__": lambda self: self._record.text,
        "__reduce__": lambda self: (exception_of, (self._record,)),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
    }
    return type(kind.__name__, (kind,), members)
