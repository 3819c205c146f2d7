"""The exceptions of :mod:`cairn.errors` for errors of the engine, and what they report to the remaining ranks.

A rank whose asynchronous save has failed reports the failure at its next call, and that call fails on all ranks. The
identity of the save is data on the exception, and travels with the report (``Error::earlier_save`` of the engine) from
rank to rank.
"""

import re
from typing import Any

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

_REPORTED_SAVE = "_cairn_reported_save"  # the attribute with the identity of a save

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

    `place` has the keywords of the constructor; under "earlier_save" the identity of an earlier save whose failure the
    error reports; and under "bare_message" the message without the texts of the keywords. `causes` has the fields of an
    ExceptionRecord.
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


def set_reported_save(error: BaseException, identity: str | None) -> None:
    """Sets the identity of the save whose failure `error` reports."""
    if identity is not None:
        error.__dict__[_REPORTED_SAVE] = identity


def reported_save(error: BaseException) -> str | None:
    """The identity of the save whose failure `error` reports; None if it reports no earlier save."""
    return error.__dict__.get(_REPORTED_SAVE)


def reported_saves(error: BaseException) -> set[str]:
    """The identities in `error` and in the failures of the ranks that it holds."""
    failures: dict[int, Any] = getattr(error, "failures", {})
    causes = [cause for cause, _ in getattr(error, "causes", ())]
    held = [error, *causes, *(failure for failure, _ in failures.values())]
    return {identity for it in held if (identity := reported_save(it)) is not None}


def _keyword_of(option: re.Match[str]) -> str:
    return f"({option[1]}={'True' if option[1] in _FLAGS else '...'})"
