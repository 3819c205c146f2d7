"""The deadlines of blocking saves: how long a call into the storage may hang."""

from cairn._process import ProcessPart, part
from cairn._settings.setting_ranges import check_settings


class _Deadlines(ProcessPart):
    def __init__(self) -> None:
        self.seconds = (300.0, 1800.0, 600.0)

    def in_child(self) -> "_Deadlines":
        return self


def configure_saves(
    *,
    deadline_seconds: float = 300.0,
    sync_deadline_seconds: float = 1800.0,
    publish_deadline_seconds: float = 600.0,
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
    """
    check_settings(
        deadline_seconds=deadline_seconds,
        sync_deadline_seconds=sync_deadline_seconds,
        publish_deadline_seconds=publish_deadline_seconds,
    )
    part(_Deadlines).seconds = (float(deadline_seconds), float(sync_deadline_seconds), float(publish_deadline_seconds))


def current() -> tuple[float, float, float]:
    """Returns the deadlines for the engine: progress, sync, publish, in seconds."""
    return part(_Deadlines).seconds
