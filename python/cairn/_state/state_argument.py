"""Checks of the arguments of ``save`` and ``load``: the state dict, and the argument that is the directory."""

import os
from collections.abc import Mapping

from cairn.errors import InvalidArgument


def check_state_dict(given: object) -> None:
    """Raises InvalidArgument if `given` is no dict and has no ``items()``."""
    if isinstance(given, Mapping) or hasattr(type(given), "items"):
        return
    hint = ""
    if _is_path(given):
        hint = "; the directory is the argument checkpoint_id"
    elif callable(getattr(given, "state_dict", None)):
        hint = "; pass what its state_dict() returns, or a dict that holds it"
    raise InvalidArgument(f"state_dict must be a dict, got {type(given).__name__}{hint}")


def check_order(function: str, first: object, second: object, directory_argument: str = "checkpoint_id=") -> None:
    """Raises InvalidArgument if `first`, the state dict in a call of `function`, and `second` are swapped.

    `directory_argument` is the form of the directory in the call: a keyword, or "" for the second argument.
    """
    if _is_path(first) and isinstance(second, Mapping):
        right = f"{function}(state_dict, {directory_argument}{os.fspath(first)!r})"  # type: ignore[call-overload]
        raise InvalidArgument(f"the arguments of {function}() are swapped: call {right}")


def refuse_path(function: str, second: object) -> None:
    """Raises InvalidArgument if `second`, the storage in a call of `function`, is a directory."""
    if _is_path(second):
        right = f"{function}(state_dict, checkpoint_id={os.fspath(second)!r})"  # type: ignore[call-overload]
        raise InvalidArgument(f"{function}() takes the directory as checkpoint_id: call {right}")


def _is_path(given: object) -> bool:
    return isinstance(given, str | os.PathLike)
