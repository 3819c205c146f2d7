"""The rule for loads that change a tensor's dtype in another way than float to float.

A call's own ``allow_cast`` decides; None takes the setting of ``cairn.install``: DCP copies into a target of any dtype,
and a program that resumes under DCP must resume under Cairn. Without ``install``, a None refuses the load. A
ConversionWarning names each cast.
"""

from cairn._process import part
from cairn._settings.installation import Installation


def cast_allowed(allow_cast: bool | None) -> bool:
    """Returns whether any cast is allowed for a call with argument `allow_cast`."""
    if allow_cast is not None:
        return allow_cast
    installation = part(Installation)
    return installation.is_installed if installation.allow_cast is None else installation.allow_cast
