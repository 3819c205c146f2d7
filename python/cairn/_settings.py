"""Settings for all calls of this process: what ``cairn.install`` and ``cairn.configure_saves`` were given.

A call's own ``allow_pickle``, ``allow_cast`` and ``follow_links`` decide; None takes the setting of ``cairn.install``.
If ``install`` was given no value:

- ``allow_pickle`` and ``follow_links`` are true if the environment variable ``CAIRN_ALLOW_PICKLE`` or
  ``CAIRN_FOLLOW_LINKS`` is 1: programs that call DCP's functions have no argument for them. Nothing from a file is
  unpickled without the user's consent. A data file that is a link may lead out of the checkpoint's directory.
- ``allow_cast``, for loads that change a tensor's dtype in another way than float to float, is true under ``install``:
  DCP copies into a target of any dtype, and a program that resumes under DCP must resume under Cairn. A
  ConversionWarning names each cast. Without ``install`` the load is refused.
"""

import os
import threading
from typing import TYPE_CHECKING, Literal

from cairn._process import ProcessPart, part
from cairn.errors import InvalidArgument

if TYPE_CHECKING:
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

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
_FLAGS = ("fail_at_exit", "heed_memory_limits", "single_writer", "torn_snapshot_alarm")


class Installation(ProcessPart):
    """A forked child inherits the installation: its modules hold Cairn's objects too."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held while install() or uninstall() runs
        self.is_installed = False
        #: For calls that leave their own argument at None. None: ``install`` was not given a value.
        self.allow_pickle: bool | None = None
        self.allow_cast: bool | None = None
        self.follow_links: bool | None = None
        self.async_checkpointer_type: AsyncCheckpointerType | None = None
        #: Module and name of each reference to an object of Cairn that was there before the installation.
        self.earlier_references: set[tuple[str, str]] = set()

    def in_child(self) -> "Installation":
        """The same object, with a lock that no thread holds."""
        self.lock = threading.RLock()
        return self

    def forget(self) -> None:
        """Sets all that ``install`` has set back to what it was."""
        self.is_installed = False
        self.allow_pickle = self.allow_cast = self.follow_links = self.async_checkpointer_type = None
        self.earlier_references = set()


def pickle_allowed(allow_pickle: bool | None) -> bool:
    """Returns whether code may run in a call with argument `allow_pickle`."""
    return _permitted(allow_pickle, "allow_pickle", "CAIRN_ALLOW_PICKLE")


def line_that_allows() -> str:
    """Returns the line of a program that gives the consent, for messages."""
    is_installed = part(Installation).is_installed
    return "cairn.install(allow_pickle=True)" if is_installed else "cairn.load(..., allow_pickle=True)"


def links_followed(follow_links: bool | None) -> bool:
    """Returns whether data files may be links in a call with argument `follow_links`."""
    return _permitted(follow_links, "follow_links", "CAIRN_FOLLOW_LINKS")


def cast_allowed(allow_cast: bool | None) -> bool:
    """Returns whether any cast is allowed for a call with argument `allow_cast`."""
    if allow_cast is not None:
        return allow_cast
    installation = part(Installation)
    return installation.is_installed if installation.allow_cast is None else installation.allow_cast


class _SaveSettings(ProcessPart):
    def __init__(self) -> None:
        self.deadlines = (300.0, 1800.0, 600.0)  # seconds
        self.single_writer = False

    def in_child(self) -> "_SaveSettings":
        return self


def configure_saves(
    *,
    deadline_seconds: float = 300.0,
    sync_deadline_seconds: float = 1800.0,
    publish_deadline_seconds: float = 600.0,
    single_writer: bool = False,
) -> None:
    """Sets the deadlines of this process's blocking saves: a save fails if a call into the storage takes longer.

    `deadline_seconds`: a write of at most 4 MiB. `sync_deadline_seconds`: an fsync, which shows no bytes.
    `publish_deadline_seconds`: a call that opens, makes, lists, renames or removes a file. Each deadline limits a
    single call, not the save; slow storage that makes progress never fails a save. Raises InvalidArgument for a value
    out of range.

    The deadlines apply to ``save`` and its variants, to :mod:`cairn.checkpointer`, and to a
    :class:`cairn.FileSystemWriter` under torch's driver, also in the background. The saves of ``async_save`` have the
    deadlines of :func:`cairn.configure_async_saves`, and :class:`cairn.AsyncSaver` has its own. While a rank's storage
    hangs, the remaining ranks wait in the process group: the group's time-out should be longer than the deadlines.

    ``convert`` has all three deadlines, also for its source. In ``convert``, ``diff`` and ``verify``,
    `publish_deadline_seconds` limits a read.

    A :class:`cairn.checkpointer.CheckpointProcess` with a writer of the caller's own passes the deadlines to its Python
    process, and kills the process after the longest deadline without CPU time and without a moved byte.

    `single_writer` allows all saves of this process, also those of ``async_save``, into an object store that ignores
    the conditions of writes, which otherwise raises Unsupported. The caller promises that no other job, and no second
    copy of this job, saves into the same checkpoint: of two such saves both would report success, and the files of the
    checkpoint in place could be removed.
    """
    check_settings(
        deadline_seconds=deadline_seconds,
        sync_deadline_seconds=sync_deadline_seconds,
        publish_deadline_seconds=publish_deadline_seconds,
        single_writer=single_writer,
    )
    settings = part(_SaveSettings)
    settings.deadlines = (float(deadline_seconds), float(sync_deadline_seconds), float(publish_deadline_seconds))
    settings.single_writer = single_writer


def save_deadlines() -> tuple[float, float, float]:
    """Returns the deadlines for the engine: progress, sync, publish, in seconds."""
    return part(_SaveSettings).deadlines


def is_single_writer() -> bool:
    """Returns whether the process's saves may use a store that ignores the conditions of writes."""
    return part(_SaveSettings).single_writer


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


def _permitted(argument: bool | None, setting: str, variable: str) -> bool:
    """Returns a permission of a call: the call's own `argument`; for None the attribute `setting` of the installation;
    for None there, whether the environment variable is 1."""
    if argument is not None:
        return argument
    installed: bool | None = getattr(part(Installation), setting)
    return os.environ.get(variable) == "1" if installed is None else installed
