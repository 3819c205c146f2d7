"""The deadlines of blocking saves: for how long one call into the storage may hang."""

from cairn._settings.setting_ranges import check_settings

_seconds = (300.0, 1800.0, 600.0)


def configure_saves(
    *,
    deadline_seconds: float = 300.0,
    sync_deadline_seconds: float = 1800.0,
    publish_deadline_seconds: float = 600.0,
) -> None:
    """When this process gives a blocking save up: one of its calls into the storage has not returned for so long.

    `deadline_seconds`: a write of at most 4 MiB. `sync_deadline_seconds`: an fsync, which shows no bytes.
    `publish_deadline_seconds`: a call that opens, makes, lists, renames or removes something. Each is for one call and
    not for the save, so storage that is slow but moves is never given up. Raises InvalidArgument for a value out of
    range.

    They count for ``save`` and its variants, for :mod:`cairn.checkpointer`, and for a
    :class:`cairn.FileSystemWriter` that torch drives, also where torch drives it in the background. The saves of
    ``async_save`` have those of :func:`cairn.configure_async_saves`, and :class:`cairn.AsyncSaver` has its own. Other
    ranks wait in the process group for a rank whose storage hangs: its time-out should be longer than these.

    A :class:`cairn.checkpointer.CheckpointProcess` with a writer of the caller's own passes them to its Python process,
    and kills that process when it has used no CPU time and moved no byte for the longest of them.
    """
    global _seconds  # noqa: PLW0603
    check_settings(
        deadline_seconds=deadline_seconds,
        sync_deadline_seconds=sync_deadline_seconds,
        publish_deadline_seconds=publish_deadline_seconds,
    )
    _seconds = (float(deadline_seconds), float(sync_deadline_seconds), float(publish_deadline_seconds))


def current() -> tuple[float, float, float]:
    """For the engine: of progress, of a sync, of a name."""
    return _seconds
