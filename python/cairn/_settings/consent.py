"""The user's consent to running code that a checkpoint names: without consent, nothing from a file is unpickled.

A call's own ``allow_pickle`` decides; None takes the setting of ``cairn.install(allow_pickle=...)``, and without that
setting the environment variable ``CAIRN_ALLOW_PICKLE``.
"""

from cairn._process import part
from cairn._settings.installation import Installation, permitted


def pickle_allowed(allow_pickle: bool | None) -> bool:
    """Returns whether code may run in a call with argument `allow_pickle`."""
    return permitted(allow_pickle, "allow_pickle", "CAIRN_ALLOW_PICKLE")


def line_that_allows() -> str:
    """Returns the line of a program that gives the consent, for messages."""
    is_installed = part(Installation).is_installed
    return "cairn.install(allow_pickle=True)" if is_installed else "cairn.load(..., allow_pickle=True)"
