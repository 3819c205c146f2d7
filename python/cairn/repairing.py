"""Rebuilding lost or broken metadata; needs no torch."""

import os
from typing import TYPE_CHECKING, Literal, NamedTuple

from cairn import _engine
from cairn._directory import existing_directory
from cairn._torch_names import modules
from cairn.cleaning import CleanedSave
from cairn.errors import Error, InvalidArgument


class LostElements(NamedTuple):
    """A tensor of which elements are in no data file."""

    key: str
    shape: tuple[int, ...]
    elements: int | None  # lost; None: the chunks are too many to be compared
    regions: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]  # offsets and sizes of some of them, at most 16


class FoundSave(NamedTuple):
    """The data files of one save, by their trailers."""

    save_id: str
    files: int
    expected_files: int | None  # None: the writer did not know the number
    is_leftover: bool  # the save has a private folder: it has not ended


class RepairReport(NamedTuple):
    """The result of :func:`repair`. True if a load of the checkpoint finds all that its save has written.

    `metadata` is ``"good"``: in place, in agreement with the data files, and not touched; ``"rebuilt"``: lost or
    broken, and written anew; ``"unusable"``: lost or broken, and not written, as `problems` say; ``"data lost"``: in
    place and intact, but data files are missing or damaged; ``"none"``: there is no checkpoint.
    """

    metadata: Literal["good", "rebuilt", "unusable", "data lost", "none"]
    is_complete: bool
    save_id: str | None
    files: int  # that the metadata names and that are in place
    tensors: int  # of rebuilt metadata
    values: int  # of rebuilt metadata
    damaged_name: str | None  # the name under which the broken metadata file is kept
    missing_files: int  # number of data files that are missing or damaged
    missing: tuple[str, ...]  # their names, as far as they are known
    lost: tuple[LostElements, ...]
    lost_values: tuple[str, ...]  # of metadata that is intact: keys of values in missing files
    saves: tuple[FoundSave, ...]  # whose files are in the directory and in no other metadata file
    cleaned: tuple[CleanedSave, ...]  # dead saves whose files were removed
    warnings: tuple[str, ...]
    problems: tuple[Error, ...]

    def __bool__(self) -> bool:
        return self.is_complete


def repair(
    directory: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    partial: bool = False,
    save: str | None = None,
    rank: int | None = None,
) -> RepairReport:
    """Rebuilds the lost or broken ``.metadata`` of the checkpoint in `directory`, and removes the files of dead saves,
    as ``cairn repair`` does.

    The metadata is made from the trailers of the data files. Good metadata, which opens and agrees with the data files,
    is never replaced; neither is intact metadata of which data files are missing. A broken file is kept as
    ``.metadata.damaged``. The new metadata names the files of one save alone. Keys, shapes, dtypes, nested paths and
    values are those of the save; the order of the keys may differ. The notes, and the order of :func:`latest`, come
    from the broken file if they are intact there.

    - `partial`: also writes metadata for the data that are left, if data files are missing; :func:`latest` never takes
      the result for a whole checkpoint.
    - `save`: the id of the save, if the files of several saves are in the directory.
    - `rank`: repairs the metadata of this rank, which has saved alone.
    - `dry_run`: nothing changes, and the report says what a call without it would do.

    The bytes of the tensors are not read: :func:`verify` does that. Raises NotFound if `directory` does not exist,
    Unavailable if a save into it is under way, and Unsupported if a later version of Cairn wrote the metadata. A
    checkpoint of stock torch has no trailers: the report says so.
    """
    if save is not None and not isinstance(save, str):
        raise InvalidArgument("the id of a save must be text", expected="str", actual=type(save).__name__)
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < 2**32):
        raise InvalidArgument("a rank must be a number from 0 on", expected="an int", actual=repr(rank))
    place = existing_directory(directory)
    report = _engine.repair(os.fsencode(place), dry_run, partial, save or "", rank)
    metadata, is_complete, save_id, files, tensors, values, damaged_name, missing_files = report[0]
    missing, lost, lost_values, saves, cleaned, warnings, problems = report[1]
    return RepairReport(
        metadata,
        is_complete,
        save_id,
        files,
        tensors,
        values,
        damaged_name or None,
        missing_files,
        tuple(missing),
        tuple(LostElements(key, shape, elements, tuple(regions)) for key, shape, elements, regions in lost),
        tuple(lost_values),
        tuple(FoundSave(*found) for found in saves),
        tuple(CleanedSave(os.fspath(place), dead, tuple(removed)) for dead, removed in cleaned),
        tuple(warnings),
        tuple(problems),
    )


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
