"""Saved items as sources of a Filling: of a whole checkpoint, and of the file of one rank."""

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from torch_checkpointing.checkpoint_layout import LayoutInfo, SafetensorsSerialization
from torch_checkpointing.utils import from_dict

from cairn._directory import naming_latest
from cairn._state.saved_tree import Branch, Leaf, Node, Slot, number_parameters
from cairn._torch_files.torch_archive import TorchArchive
from cairn._whole_state import read
from cairn.checkpointer.saved_rank import SavedRank
from cairn.checkpointer.selection import Reading
from cairn.errors import Corrupt, UnsafeContent, Unsupported


class _SavedItems:
    """Saved values and tensors below `node`, which the engine reads one by one."""

    def __init__(self, saved: SavedRank) -> None:
        self._saved = saved
        self.node: Branch = saved.tree()
        number_parameters(self.node)

    def read_values(self, slots: Sequence[Slot]) -> None:
        """Reads and decodes the values of `slots`."""
        self._saved.read_values(slots)

    def read_tensors(self, slots: Sequence[Slot]) -> None:
        """Fills the targets of `slots`, and makes new tensors for slots without a target."""
        self._saved.read_tensors(slots)


class WholeCheckpoint(_SavedItems):
    """The items of all ranks: of a DCP checkpoint, or of a directory of torch_checkpointing, which the engine puts
    together."""

    holds_parts = False

    def __init__(self, directory: bytes, reading: Reading) -> None:
        with naming_latest(directory):
            saved = SavedRank(directory, None, reading, to_devices=True)
        self.notes: dict[str, Any] = saved.notes
        super().__init__(saved)


class EngineItem(_SavedItems):
    """An item in a file of ``torch.save`` with values that torch's rules refuse, such as arrays of NumPy: the engine
    reads its values one by one, and only those that a load asks for."""

    holds_parts = True

    def __init__(self, file: Path, reading: Reading) -> None:
        super().__init__(SavedRank(os.fsencode(file), None, reading))


class TorchItem:
    """An item in a file of ``torch.save``."""

    holds_parts = True

    def __init__(self, file: Path, reading: Reading) -> None:
        self._archive = TorchArchive(
            file, allow_pickle=reading.allow_pickle, verify=reading.verify, place=reading.place
        )
        self.node: Node = self._archive.node()

    def read_values(self, slots: Sequence[Slot]) -> None:
        """Gives the values, which are decoded already."""
        self._archive.read_values(slots)

    def read_tensors(self, slots: Sequence[Slot]) -> None:
        """Fills the targets of `slots`, and makes new tensors for slots without a target."""
        self._archive.read_tensors(slots)


class DecodedItem:
    """An item that is decoded as a whole: JSON, raw bytes, safetensors."""

    holds_parts = True

    def __init__(self, value: Any) -> None:
        self.node: Node = Leaf("", value)

    def read_values(self, slots: Sequence[Slot]) -> None:
        """Gives the value."""
        for slot in slots:
            slot.value = slot.leaf.content

    def read_tensors(self, slots: Sequence[Slot]) -> None:
        """Does nothing: a decoded item is one value."""


ItemInFile: TypeAlias = TorchItem | EngineItem | DecodedItem


def item_in_file(file: Path, layout: LayoutInfo, target: Any, reading: Reading) -> ItemInFile:
    """Opens the file of an item. Raises UnsafeContent, Corrupt, Unsupported."""
    form = layout.serialization_format
    kind = type(form).__name__
    if kind == "TorchSerialization":
        return _torch_item(file, reading)
    if kind == "RawSerialization":
        return DecodedItem(file.read_bytes())
    if kind == "JsonSerialization":
        return DecodedItem(_json_in(file, getattr(form, "cls", None)))
    if kind == "SafetensorsSerialization":
        flat = {
            key: reading.place(tensor) for key, tensor in read(file, tensors="torch", verify=reading.verify).items()
        }
        return DecodedItem(flat if target is None else SafetensorsSerialization.unflatten_to_target(flat, target))
    raise Unsupported(f"'{file}' has a serialization format of the class {type(form).__qualname__}", file=file.name)


def _torch_item(file: Path, reading: Reading) -> TorchItem | EngineItem:
    try:
        return TorchItem(file, reading)
    except UnsafeContent:
        with contextlib.suppress(Unsupported):  # the file holds no dict
            return EngineItem(file, reading)
        raise


def _json_in(file: Path, cls: type | None) -> Any:
    """Returns the value in a file of JSON; with `cls`, a class that the caller has given, an instance of it."""
    try:
        value = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"'{file}' is no JSON: {error}", file=file.name) from error
    return value if cls is None else from_dict(cls, value)  # type: ignore[no-untyped-call]
