"""The identity of an earlier save, as data on the exception that reports the failure of that save to other ranks.

A rank whose asynchronous save has failed reports the failure at its next call, and that call fails on all ranks. The
identity travels with the report (``Error::earlier_save`` of the engine) from rank to rank.
"""

from typing import Any

_NAME = "_cairn_reported_save"


def set_reported_save(error: BaseException, identity: str | None) -> None:
    """Sets the identity of the save whose failure `error` reports."""
    if identity is not None:
        error.__dict__[_NAME] = identity


def reported_save(error: BaseException) -> str | None:
    """The identity of the save whose failure `error` reports; None if it reports no earlier save."""
    return error.__dict__.get(_NAME)


def reported_saves(error: BaseException) -> set[str]:
    """The identities in `error` and in the failures of the ranks that it holds."""
    failures: dict[int, Any] = getattr(error, "failures", {})
    causes = [cause for cause, _ in getattr(error, "causes", ())]
    held = [error, *causes, *(failure for failure, _ in failures.values())]
    return {identity for it in held if (identity := reported_save(it)) is not None}
