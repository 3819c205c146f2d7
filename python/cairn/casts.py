"""Whether a load may change the dtype of a tensor in other ways than from one floating-point dtype to another.

A call's own ``allow_cast`` decides. Where that is None, ``cairn.install`` does: DCP copies into a target of any dtype,
and a program that resumes under DCP has to resume under Cairn. Without ``install`` such a load is refused. Each cast is
named in a ConversionWarning.
"""

_is_installed = False
_installed: bool | None = None


def cast_allowed(allow_cast: bool | None) -> bool:
    """Whether any cast is allowed, where a call says `allow_cast`."""
    if allow_cast is not None:
        return allow_cast
    return _is_installed if _installed is None else _installed


def note_installation(allow_cast: bool | None) -> None:
    """For ``cairn.install``: for all calls with None; None leaves an earlier value in force."""
    global _installed, _is_installed  # noqa: PLW0603
    _is_installed = True
    _installed = _installed if allow_cast is None else allow_cast


def note_removal() -> None:
    """For ``cairn.uninstall``."""
    global _installed, _is_installed  # noqa: PLW0603
    _is_installed = False
    _installed = None
