"""Whether a load may change the dtype of a tensor in other ways than from one floating-point dtype to another.

A call's own ``allow_cast`` decides. Where that is None, ``cairn.install`` does: DCP copies into a target of any dtype,
and a program that resumes under DCP has to resume under Cairn. Without ``install`` such a load is refused. Each cast is
named in a ConversionWarning.
"""

from cairn._settings.installed_switch import InstalledSwitch

installed = InstalledSwitch()


def cast_allowed(allow_cast: bool | None) -> bool:
    """Whether any cast is allowed, where a call says `allow_cast`."""
    if allow_cast is not None:
        return allow_cast
    return installed.is_installed if installed.value is None else installed.value
