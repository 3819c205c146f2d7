"""The user's consent to running code that a checkpoint names: without it, nothing from a file is unpickled.

A call's own ``allow_pickle`` decides. Where that is None, ``cairn.install(allow_pickle=...)`` does, and if that was not
said either, the environment variable ``CAIRN_ALLOW_PICKLE``.
"""

import os

_installed: bool | None = None
_is_installed = False


def pickle_allowed(allow_pickle: bool | None) -> bool:
    """Whether code may run, where a call says `allow_pickle`."""
    if allow_pickle is not None:
        return allow_pickle
    return os.environ.get("CAIRN_ALLOW_PICKLE") == "1" if _installed is None else _installed


def line_that_allows() -> str:
    """The line of a program that gives the consent, for messages."""
    return "cairn.install(allow_pickle=True)" if _is_installed else "cairn.load(..., allow_pickle=True)"


def note_installation(allow_pickle: bool | None) -> None:
    """For ``cairn.install``: the consent for all calls that don't say; None leaves what was said before."""
    global _installed, _is_installed  # noqa: PLW0603
    _is_installed = True
    _installed = _installed if allow_pickle is None else allow_pickle


def note_removal() -> None:
    """For ``cairn.uninstall``."""
    global _installed, _is_installed  # noqa: PLW0603
    _is_installed = False
    _installed = None
