"""CheckpointReader, with the name of torch_checkpointing: reads items into the caller's containers.

1. The directory is a DCP checkpoint, or one of torch_checkpointing.
2. Each item gets its source: the checkpoint of all ranks, or the file of this rank.
3. A Filling compares everything with the targets, then fills them.
"""

import abc
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch_checkpointing import checkpoint_reader as theirs
from torch_checkpointing.checkpoint_base import CheckpointItem, CheckpointReadInfo
from torch_checkpointing.checkpoint_layout import default_torch_layout_info
from torch_checkpointing.default_resharder import DefaultResharder
from torch_checkpointing.metadata_serialization import DistributedMetadataFormat
from torch_checkpointing.storage.base_storage import Storage, StorageConfig
from torch_checkpointing.storage.filesystem import LocalFileSystemStorage
from torch_checkpointing.types import STATE_DICT, RankInfo

from cairn._directory import existing_directory, metadata_name, restarting
from cairn._settings import links_followed, pickle_allowed
from cairn._state.ignored_keys import warn_of_ignored_by_template
from cairn._telemetry import engine_use
from cairn._telemetry.ended_calls import Stopwatch
from cairn._torch_names.replacements import stands_for_base
from cairn._torch_protocol.hooks import hooks_of, why_not_native
from cairn.checkpointer.checkpointer import MissingKeys
from cairn.checkpointer.selection import Reading, placement
from cairn.errors import Corrupt, NotFound, Replaced
from cairn.torch_checkpointing.dcp_files import NOTE
from cairn.torch_checkpointing.filling import Filling, SavedItem
from cairn.torch_checkpointing.item_sources import WholeCheckpoint, item_in_file
from cairn.torch_checkpointing.recorded_metadata import RecordedMetadata, file_of

_CALL = "torch_checkpointing.load"
_NAMED_ITEMS_MAX = 8  # that an error lists
_READING_HOOKS = hooks_of(theirs.CheckpointReader)
_STORAGE_HOOKS = hooks_of(LocalFileSystemStorage)
_RESHARDING_HOOKS = hooks_of(DefaultResharder) - {"skip_resharding"}

_Result = TypeVar("_Result")


@stands_for_base
class CheckpointReader(theirs.CheckpointReader, metaclass=abc.ABCMeta):
    """Reads items of checkpoints of torch_checkpointing, and of DCP checkpoints. Runs no code from a file without
    consent.

    `allow_pickle` lets files run the code that they name; None: as ``cairn.install`` says, else only if the environment
    variable CAIRN_ALLOW_PICKLE is 1. A storage or a resharder of the caller's own class, and a ``metadata_format``,
    leave the read to torch_checkpointing's own code, which unpickles files: ``cairn.report()`` has the reason.
    """

    def __init__(
        self,
        rank_info: RankInfo,
        storage_config: StorageConfig,
        disable_use_mmap_backed_storage_on_load: bool = False,
        mmap_fill_factory: Callable[[Storage], Any] | None = None,
        storage: Storage | None = None,
        *,
        allow_pickle: bool | None = None,
    ) -> None:
        super().__init__(rank_info, storage_config, disable_use_mmap_backed_storage_on_load, mmap_fill_factory, storage)
        self._allow_pickle = allow_pickle

    @property
    def is_native(self) -> bool:
        """Whether the class is this one, or overrides none of its methods."""
        return not why_not_native(self, _READING_HOOKS, (theirs.CheckpointReader, CheckpointReader))

    def read(
        self,
        path: str | os.PathLike[str],
        checkpoint_info: CheckpointReadInfo,
        map_location: Any = None,
        *,
        metadata_format: type[DistributedMetadataFormat] | None = None,
    ) -> tuple[STATE_DICT, list[str]]:
        """Returns the items of `checkpoint_info`, filled, and the keys that the checkpoint lacks."""
        return self.read_items(path, checkpoint_info, map_location, metadata_format, strict=False)

    def read_items(
        self,
        path: str | os.PathLike[str],
        checkpoint_info: CheckpointReadInfo,
        map_location: Any,
        metadata_format: type[DistributedMetadataFormat] | None,
        *,
        strict: bool,
    ) -> tuple[STATE_DICT, list[str]]:
        """As read(). With `strict`, keys that the checkpoint lacks raise MissingKeys before anything changes."""
        reason = self._why_stock(checkpoint_info, metadata_format)
        if reason:
            loaded, missing = super().read(path, checkpoint_info, map_location, metadata_format=metadata_format)
            engine_use.note(_CALL, path, reason, engine=False, expected=False)
            if strict and missing:
                raise _missing_keys(path, missing)
            return loaded, missing
        directory = Path(existing_directory(path))
        if not directory.is_dir():
            raise NotFound(f"Checkpoint path {path} does not exist.", file=str(path))
        watch = Stopwatch("loaded")
        rank = self._rank_info.global_rank
        reading = Reading(placement(map_location), map_location, pickle_allowed(self._allow_pickle), "needed")

        def attempt() -> tuple[dict[str, Any], Filling]:
            filling = Filling(rank)
            saved = _items_in(directory, checkpoint_info, rank, reading)
            for key, item in checkpoint_info.checkpoint_items.items():
                filling.add(saved(key, item), item.value)
            filling.read_values()
            if strict and filling.missing:
                raise _missing_keys(path, filling.missing)
            filling.read_tensors()
            return filling.settled(), filling

        try:
            loaded, filled = restarting(lambda: _of_one_directory(directory, attempt))
        except Corrupt as error:
            if error.file is None or os.path.lexists(directory / error.file):
                raise
            raise NotFound(error.message, key=error.key, rank=error.rank, file=error.file) from error
        engine_use.note(_CALL, directory)
        watch.log(directory, filled.size, rank, self._rank_info.global_world_size)
        warn_of_ignored_by_template(filled.ignored, str(directory))
        return loaded, filled.missing

    def _why_stock(self, info: CheckpointReadInfo, metadata_format: type[DistributedMetadataFormat] | None) -> str:
        if not self.is_native:
            return f"the reader: {why_not_native(self, _READING_HOOKS, (theirs.CheckpointReader, CheckpointReader))}"
        if metadata_format is not None:
            return "metadata_format is given"
        if self._mmap_fill_factory is not None:
            return "mmap_fill_factory is given"
        if foreign := why_not_native(self._storage, _STORAGE_HOOKS, (LocalFileSystemStorage,)):
            return f"the storage: {foreign}"
        resharders = {key: item.resharder for key, item in info.checkpoint_items.items() if item.resharder is not None}
        found = (
            (key, why_not_native(each, _RESHARDING_HOOKS, (DefaultResharder,))) for key, each in resharders.items()
        )
        return next((f"the resharder of item '{key}': {reason}" for key, reason in found if reason), "")


def _of_one_directory(directory: Path, attempt: Callable[[], _Result]) -> _Result:
    """Returns the result of `attempt`, which opens files in `directory` one after the other.

    Raises Replaced if a save has exchanged the directory meanwhile: the files may be those of two checkpoints.
    """
    before = _identity(directory)
    try:
        result = attempt()
    except (Corrupt, NotFound):
        if _identity(directory) == before:
            raise
    else:
        if _identity(directory) == before:
            return result
    raise Replaced(f"a save has replaced the checkpoint in '{directory}' during the load: load again")


def _identity(directory: Path) -> tuple[int, int] | None:
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


_Finder = Callable[[str, CheckpointItem], SavedItem]


def _items_in(directory: Path, info: CheckpointReadInfo, rank: int, reading: Reading) -> _Finder:
    """Returns the function that finds an item of the checkpoint in `directory`."""
    if (directory / metadata_name(None)).exists():
        return _items_of_dcp(directory, rank, reading)
    return _items_of_files(directory, info, rank, reading)


def _items_of_dcp(directory: Path, rank: int, reading: Reading) -> _Finder:
    whole = WholeCheckpoint(os.fsencode(directory), reading)
    note = whole.notes.get(NOTE)
    ranks = note.get("world_size") if isinstance(note, Mapping) else None

    def find(key: str, item: CheckpointItem) -> SavedItem:
        refusal = None
        if item.resharder is None and isinstance(ranks, int) and rank >= ranks:
            refusal = NotFound(
                f"rank {rank} has no '{key}' in the checkpoint in '{directory}', which {ranks} ranks have saved: an "
                f"item without a resharder belongs to each rank. Give the item a resharder before the save, or leave "
                f"it out of the load",
                key=key,
                rank=rank,
            )
        node = whole.node.entry(key)
        if node is None and isinstance(item.value, Mapping) and not item.value:
            node = type(whole.node)()
        if node is None:
            raise _no_item(directory, key, list(whole.node.entries))
        return SavedItem(key, whole, node, refusal)

    return find


def _items_of_files(directory: Path, info: CheckpointReadInfo, rank: int, reading: Reading) -> _Finder:
    # The package also accepts a CheckpointInfo, which has no targets.
    targets = getattr(info, "target_local_metadata", None) or {}
    may_reshard = any(
        item.resharder is not None and not item.resharder.skip_resharding for item in info.checkpoint_items.values()
    )
    recorded = RecordedMetadata(directory) if may_reshard else None
    joined: list[WholeCheckpoint] = []  # opened for the first item that needs it

    def find(key: str, item: CheckpointItem) -> SavedItem:
        resharder = item.resharder
        may_differ = resharder is not None and not resharder.skip_resharding
        if recorded is not None and may_differ and recorded.must_reshard(key, targets.get(key)):
            if not joined:
                joined.append(WholeCheckpoint(os.fsencode(directory), reading))
            node = joined[0].node.entry(key)
            if node is None:
                raise _no_item(directory, key, list(joined[0].node.entries))
            return SavedItem(key, joined[0], node)
        layout = None if recorded is None else recorded.layout(key, rank, item.layout, reading.allow_pickle)
        layout = layout or item.layout or default_torch_layout_info(key, rank)
        file = file_of(directory, layout, key, rank, follow_links=links_followed(None))
        source = item_in_file(file, layout, item.value, reading)
        return SavedItem(key, source, source.node)

    return find


def _no_item(directory: Path, key: str, names: list[Any]) -> NotFound:
    shown = ", ".join(map(str, names[:_NAMED_ITEMS_MAX])) + (", ..." if len(names) > _NAMED_ITEMS_MAX else "")
    return NotFound(f"the checkpoint in '{directory}' has no item '{key}'", key=key, expected=f"one of {shown}")


def _missing_keys(path: object, missing: list[str]) -> MissingKeys:
    return MissingKeys(f"Checkpoint at {path} is missing keys: {missing}", key=missing[0], keys=missing)
