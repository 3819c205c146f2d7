"""The exceptions of :mod:`cairn.errors` for errors of the engine."""

import re
from typing import Any

from cairn._failures.reported_save import set_reported_save
from cairn.errors import (
    Cancelled,
    Corrupt,
    Error,
    ExceptionRecord,
    InternalError,
    InvalidArgument,
    MissingKey,
    NoSpace,
    NotFound,
    Replaced,
    Superseded,
    SystemFailure,
    Unavailable,
    UnsafeContent,
    Unsupported,
    UnusableDirectory,
)

# An option in a message of the engine (cairn/result.h), and the options that are flags.
_OPTION = re.compile(r"\(option (\w+)\)")
_FLAGS = ("allow_cast", "allow_pickle", "follow_links", "overwrite")

_BY_CODE: dict[str, type[Error]] = {
    kind.code: kind
    for kind in (
        InvalidArgument,
        MissingKey,
        NotFound,
        Corrupt,
        UnsafeContent,
        Unsupported,
        Unavailable,
        NoSpace,
        Superseded,
        Replaced,
        Cancelled,
        InternalError,
    )
}


def from_engine(
    code: str, message: str, error_number: int, place: dict[str, Any], causes: list[tuple[Error, Any]]
) -> Error:
    """The exception for an error of the engine, which calls this.

    `place` has the keywords of the constructor; under "earlier_save" the identity of an earlier save whose failure
    the error reports (:mod:`cairn._failures.reported_save`); and under "bare_message" the message without the texts of
    the keywords. `causes` has the fields of an ExceptionRecord.
    """
    kind = _BY_CODE.get(code, InternalError)
    if kind is InvalidArgument and error_number:
        kind = UnusableDirectory
    message = _OPTION.sub(_keyword_of, message)
    earlier_save = place.pop("earlier_save", None)
    bare_message = _OPTION.sub(_keyword_of, place.pop("bare_message", message))
    if issubclass(kind, SystemFailure):
        error: Error = kind(message, error_number=error_number, **place)
    else:
        error = kind(message, **place)
    error._bare_message = bare_message
    set_reported_save(error, earlier_save)
    error.causes = [(cause, None if record is None else ExceptionRecord(*record)) for cause, record in causes]
    return error


def _keyword_of(option: re.Match[str]) -> str:
    return f"({option[1]}={'True' if option[1] in _FLAGS else '...'})"
