"""The valid values of the settings of saves."""

from typing import Literal

from cairn.errors import InvalidArgument

IoPriority = Literal["low", "idle"]

_COUNT_MAX = 1 << 16
_SECONDS_MAX = 1e9
_RANGES: dict[str, tuple[type | tuple[type, ...], float, float]] = {  # by setting: type, least and greatest value
    "generations": (int, 1, _COUNT_MAX),
    "deadline_seconds": ((int, float), 0.001, _SECONDS_MAX),
    "sync_deadline_seconds": ((int, float), 0.001, _SECONDS_MAX),
    "publish_deadline_seconds": ((int, float), 0.001, _SECONDS_MAX),
    "grace_seconds": ((int, float), 0, _SECONDS_MAX),
    "nice": (int, 0, 19),
}
_FLAGS = ("fail_at_exit", "heed_memory_limits", "torn_snapshot_alarm")


def check_settings(io_priority: object = None, **settings: object) -> None:
    """Raises InvalidArgument if a setting of an AsyncSaver has an invalid value."""
    if io_priority not in (None, "low", "idle"):
        raise InvalidArgument("io_priority must be 'low', 'idle' or None", actual=repr(io_priority))
    for name, value in settings.items():
        if name in _FLAGS and not isinstance(value, bool):
            raise InvalidArgument(f"{name} must be True or False", actual=repr(value))
        if name not in _RANGES:
            continue
        kind, least, greatest = _RANGES[name]
        if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= greatest:  # type: ignore[operator]
            raise InvalidArgument(
                f"{name} is out of its range", expected=f"{least:g} to {greatest:g}", actual=repr(value)
            )
