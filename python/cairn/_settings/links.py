"""The rule for data files that are symbolic links: a link may lead out of the checkpoint's directory.

A call's own ``follow_links`` decides; None takes the setting of ``cairn.install(follow_links=...)``, and without that
setting the environment variable ``CAIRN_FOLLOW_LINKS``: programs that call DCP's functions have no argument for it.
"""

from cairn._settings.installation import permitted


def links_followed(follow_links: bool | None) -> bool:
    """Returns whether data files may be links in a call with argument `follow_links`."""
    return permitted(follow_links, "follow_links", "CAIRN_FOLLOW_LINKS")
