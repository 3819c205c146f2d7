"""Removing checkpoints by a rule, and pins that protect checkpoints; needs no torch."""

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cairn import _engine
from cairn._directory import existing_directory, real_path
from cairn._torch_names import modules
from cairn.errors import Error, InvalidArgument

if TYPE_CHECKING:
    import datetime  # a slow import that `import cairn` does not need

_COUNT_MAX = 2**63 - 1
_SECONDS_MAX = 10**12  # far from the end of every clock

_Best = tuple[str, Literal["min", "max"]] | tuple[str, Literal["min", "max"], int]


class RemovedCheckpoint(NamedTuple):
    """A checkpoint whose files were removed."""

    directory: str
    step: int | None  # in the directory's name, as for :func:`cairn.latest`
    save_id: str | None  # None for a checkpoint of stock torch
    files: int
    bytes: int  # of the files
    was_interrupted: bool  # the rest of a removal that had been interrupted
    keeps_directory: bool  # files of others are, or in a dry run would be, in the directory
    warnings: tuple[str, ...]  # files that could not be removed


class KeptCheckpoint(NamedTuple):
    """A checkpoint that :func:`prune` has kept, and the reason."""

    directory: str
    step: int | None  # in the directory's name, as for :func:`cairn.latest`
    reason: str  # "newest", "last 3", "pinned", "of stock torch"


class PruneReport(NamedTuple):
    """The result of :func:`prune`. True if every checkpoint that the rule does not keep was removed, with all files."""

    removed: tuple[RemovedCheckpoint, ...]  # the oldest first
    kept: tuple[KeptCheckpoint, ...]  # the newest first, in the order of cairn.latest
    problems: tuple[Error, ...]  # why a checkpoint could not be removed

    @property
    def bytes(self) -> int:
        """The size of all removed files in bytes."""
        return sum(checkpoint.bytes for checkpoint in self.removed)

    def __bool__(self) -> bool:
        return not self.problems and not any(checkpoint.warnings for checkpoint in self.removed)


def prune(
    root: str | os.PathLike[str],
    *,
    keep_last: int | None = None,
    keep_every: "int | datetime.timedelta | None" = None,
    keep_best: _Best | Sequence[_Best] | None = None,
    newer_than: "datetime.timedelta | float | None" = None,
    adopt: bool = False,
    dry_run: bool = False,
    protect: Iterable[str | os.PathLike[str]] = (),
) -> PruneReport:
    """Removes the checkpoints in the directories in `root` that no part of the rule keeps, as ``cairn prune`` does.

    The parts of the rule, of which at least one is needed:

    - ``keep_last=3``: the newest three that are good, in the order of :func:`latest`.
    - ``keep_every=1000``: each whose step is a multiple of 1000. With a timedelta, from the oldest on, each good one
      that is at least so much later than the one kept before it.
    - ``keep_best=("loss", "min", 3)``, or a list of such tuples: the three with the smallest metric ``loss``; without a
      number, one. A checkpoint without the metric is never among the best.
    - ``newer_than=timedelta(days=7)``, or a number of seconds: each that is at most so old, by the clock of this host.

    Always kept are the newest good checkpoint and all that are newer, and without a good checkpoint all; pinned
    checkpoints (:func:`pin`); checkpoints in a directory into which a save is under way; checkpoints in the directories
    of `protect`, each of which is a directory in `root`; and checkpoints behind links, a checkpoint in `root` itself,
    safetensors models, and checkpoints whose metadata can't be read; and checkpoints without a step in the name of
    their directory, which do not count as the newest or as one of the last. A checkpoint is good if it is whole as
    :func:`latest` demands, and if the trailer of each data file has the recorded checksum. Without `adopt`, checkpoints
    of stock torch and copies by :func:`convert` are kept too. Files that no save of the checkpoint has written stay,
    and their directory with them.

    Each removal begins with a rename, after which no reader finds the checkpoint; then the files go. A removal that a
    crash has interrupted is finished by the next call. With `dry_run` nothing changes, and the report says what a call
    without it would remove.

    Raises InvalidArgument for a rule without a part, and for a directory of `protect` that is not in `root`. Raises
    NotFound if `root` does not exist. A checkpoint that could not be removed is a problem of the report; the call goes
    on with the next checkpoint. Ctrl-C ends the call between two checkpoints.
    """
    place = existing_directory(root)
    rule = retention_rule(keep_last, keep_every, keep_best, newer_than)
    protected = [os.fsencode(_child_of(place, directory)) for directory in protect]
    removed, kept, problems = _engine.prune(os.fsencode(place), rule, adopt, dry_run, protected)
    return PruneReport(
        tuple(_removed(checkpoint) for checkpoint in removed),
        tuple(KeptCheckpoint(os.fsdecode(directory), step, reason) for directory, step, reason in kept),
        tuple(problems),
    )


def retention_rule(
    keep_last: int | None,
    keep_every: "int | datetime.timedelta | None",
    keep_best: _Best | Sequence[_Best] | None,
    newer_than: "datetime.timedelta | float | None",
) -> tuple[Any, ...]:
    """Returns the rule as the engine takes it. Raises InvalidArgument."""
    steps, seconds = _distance_of(keep_every)
    return (_count("keep_last", keep_last), steps, seconds, _seconds("newer_than", newer_than), _best_of(keep_best))


def remove_checkpoint(directory: str | os.PathLike[str], *, dry_run: bool = False) -> RemovedCheckpoint:
    """Removes the checkpoint in `directory`, even the only one, as ``cairn rm`` does.

    Files that no save of the checkpoint has written stay, and `directory` with them. With `dry_run` nothing changes,
    and the result says what a call without it would remove. A removal that a crash has interrupted is finished. Raises
    NotFound without a checkpoint, InvalidArgument if the checkpoint is pinned, and Unavailable if a save into the
    directory is under way.
    """
    return _removed(_engine.remove_checkpoint(os.fsencode(existing_directory(directory)), dry_run))


def pin(directory: str | os.PathLike[str], note: str = "") -> None:
    """Protects the checkpoint in `directory`, and each that replaces it there, from :func:`prune` and
    :func:`remove_checkpoint`.

    The pin is the file ``.cairn-pinned``, durable when the call returns. `note` is for people: who needs the
    checkpoint, and why; at most 64 KiB. Pinning again keeps the first note. Raises NotFound without a checkpoint.
    """
    if not isinstance(note, str):
        raise InvalidArgument("the note of a pin must be text", expected="str", actual=type(note).__name__)
    _engine.pin(os.fsencode(existing_directory(directory)), note)


def unpin(directory: str | os.PathLike[str]) -> bool:
    """Removes the pin of the checkpoint in `directory`. Returns whether there was a pin."""
    return _engine.unpin(os.fsencode(existing_directory(directory)))


def pin_note(directory: str | os.PathLike[str]) -> str | None:
    """Returns the note of the pin of the checkpoint in `directory`; None: the checkpoint is not pinned."""
    return _engine.read_pin(os.fsencode(existing_directory(directory)))


def _removed(checkpoint: "_engine._RemovedCheckpoint") -> RemovedCheckpoint:
    directory, step, save_id, files, size, was_interrupted, keeps_directory, warnings = checkpoint
    return RemovedCheckpoint(
        os.fsdecode(directory), step, save_id, files, size, was_interrupted, keeps_directory, tuple(warnings)
    )


def _count(name: str, count: Any) -> int | None:
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _COUNT_MAX:
        raise InvalidArgument(f"{name} must be a number of at least 1", expected="an int from 1 on", actual=repr(count))
    return count


def _seconds(name: str, duration: "datetime.timedelta | float | None") -> int | None:
    import datetime

    if duration is None:
        return None
    seconds = duration.total_seconds() if isinstance(duration, datetime.timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= _SECONDS_MAX:
        raise InvalidArgument(
            f"{name} must be a positive timedelta or number of seconds", expected="more than 0", actual=repr(duration)
        )
    return math.ceil(seconds)


def _distance_of(keep_every: "int | datetime.timedelta | None") -> tuple[int | None, int | None]:
    """Returns the steps, or the seconds."""
    import datetime

    if isinstance(keep_every, datetime.timedelta):
        return None, _seconds("keep_every", keep_every)
    return _count("keep_every", keep_every), None


def _best_of(keep_best: Any) -> list[tuple[str, bool, int]]:
    if keep_best is None:
        return []
    entries = (
        [keep_best] if isinstance(keep_best, tuple) and keep_best[:1] and isinstance(keep_best[0], str) else keep_best
    )
    result = []
    for entry in entries if isinstance(entries, (list, tuple)) else [entries]:
        metric, order, count = (*entry, 1)[:3] if isinstance(entry, tuple) and len(entry) in (2, 3) else (None, None, 1)
        if not isinstance(metric, str) or not metric or order not in ("min", "max"):
            raise InvalidArgument(
                "keep_best must be a metric's name and an order, or a list of these",
                expected='("loss", "min") or ("loss", "min", 3)',
                actual=repr(entry),
            )
        result.append((metric, order == "max", _count("the number in keep_best", count) or 1))
    return result


def _child_of(root: str | os.PathLike[str], directory: str | os.PathLike[str]) -> str:
    """Returns the path in `root` of a directory in `root`, as the engine names it.

    A path that is relative to `root`, and not to the working directory, is refused: it would protect nothing.
    """
    place = Path(existing_directory(directory))
    root_path = real_path(root)
    for path in (Path(real_path(place)), Path.cwd() / place):  # what a link leads to, or the link: prune() keeps links
        if real_path(path.parent) == root_path:
            return f"{os.fspath(root)}/{path.name}"  # a Path would drop the "./" of the root
    raise InvalidArgument(
        "protect takes directories in the root", expected=f"a directory in '{os.fspath(root)}'", actual=str(place)
    )


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
