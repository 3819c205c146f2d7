"""Removing the files of dead saves; needs no torch."""

import os
from typing import TYPE_CHECKING, NamedTuple

from cairn import _engine
from cairn._directory import existing_directory
from cairn._torch_names import modules
from cairn.errors import Error


class CleanedSave(NamedTuple):
    """A dead save whose files were removed."""

    directory: str  # `root`, or a directory in `root`; of a save of torch_checkpointing the hidden one, which goes too
    save_id: str
    files: tuple[tuple[str, int], ...]  # name, relative to the directory, and bytes

    @property
    def nbytes(self) -> int:
        """The size of the files in bytes."""
        return sum(size for _, size in self.files)


class CleanReport(NamedTuple):
    """The result of :func:`clean`. True if every dead save was removed."""

    saves: tuple[CleanedSave, ...]
    warnings: tuple[str, ...]  # saves that were left, since only a different user may read them
    problems: tuple[Error, ...]  # why a dead save, or a file of it, could not be removed

    @property
    def nbytes(self) -> int:
        """The size of the files of all removed saves in bytes."""
        return sum(save.nbytes for save in self.saves)

    def __bool__(self) -> bool:
        return not self.problems


def clean(root: str | os.PathLike[str], *, dry_run: bool = False) -> CleanReport:
    """Removes the files of dead saves in `root` and in the directories in `root`, as ``cairn clean`` does.

    A save is dead if each of its processes has died, or, on another host, has given no sign of life for five minutes:
    the rule by which a save cleans its own directory. A file that a checkpoint or a model needs, a file of a living
    save, a committed checkpoint, and a foreign file outside of the private folder and of the new directory of a dead
    save are never removed. A save that had committed before it died is completed: the files of the checkpoint that it
    replaced are removed. Links in `root` are not followed.

    With `dry_run` nothing changes, and the report says what a call without it would remove. Raises NotFound if `root`
    does not exist, and is not the directory of a dead save of torch_checkpointing either, InvalidArgument if `root` is
    not a directory, and Unavailable if `root` can't be listed. A directory that this user may not enter is a warning of
    the report, and a directory that can't be cleaned is a problem of the report; the call goes on with the next
    directory.
    """
    saves, warnings, problems = _engine.clean(os.fsencode(existing_directory(root)), dry_run)
    cleaned = (CleanedSave(os.fsdecode(directory), save_id, tuple(files)) for directory, save_id, files in saves)
    return CleanReport(tuple(cleaned), tuple(warnings), tuple(problems))


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
