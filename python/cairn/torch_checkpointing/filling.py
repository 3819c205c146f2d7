"""Filling: the match of the caller's containers with saved items, decided before anything changes.

1. :meth:`Filling.add` walks through the targets of an item and the tree of the saved item together. A mapping selects
   its keys; None selects everything below. Keys that the checkpoint lacks are recorded, and their targets stay.
2. :meth:`Filling.read_values` reads the values, and compares them with the targets. From now on all missing keys are
   known.
3. :meth:`Filling.read_tensors` fills the tensors of the targets, and makes new tensors.
4. :meth:`Filling.settled` puts values and new tensors into their containers: dicts and lists in place, tuples anew.

Types are compared by the rules of torch_checkpointing.
"""

import re
from collections.abc import Callable, Mapping, MutableSequence, Sequence, Set
from typing import Any, NamedTuple, Protocol

import torch
from torch.distributed.tensor import DTensor

from cairn._settings import cast_allowed
from cairn._state.per_rank import PerRank
from cairn._state.saved_tree import Branch, Leaf, Node, Slot
from cairn._state.tensors import fill, is_declared_shard, is_filled_in_place
from cairn.checkpointer.selection import Mismatch
from cairn.errors import NotFound
from cairn.torch_checkpointing.dcp_files import is_global

_RANK = re.compile(r"__rank_(0|[1-9][0-9]{0,8})")
_TEXTS = (str, bytes, bytearray)


class Source(Protocol):
    """Saved items that are read together. `holds_parts`: a DTensor of the source is this rank's part."""

    holds_parts: bool

    def read_values(self, slots: Sequence[Slot]) -> None:
        """Sets the values of `slots`."""

    def read_tensors(self, slots: Sequence[Slot]) -> None:
        """Fills the targets of `slots`, and makes new tensors for slots without a target."""


class SavedItem(NamedTuple):
    """An item of a checkpoint. `refusal` is the error for a value of a rank that has saved none; None: no such rank is
    known."""

    name: str
    source: Source
    node: Node
    refusal: NotFound | None = None


class Filling:
    """A load of items into the caller's containers. `rank` is the number of this rank."""

    def __init__(self, rank: int) -> None:
        self.missing: list[str] = []
        self.ignored: dict[str, int] = {}  # places of empty dicts of the caller's, and the number of saved keys below
        self._rank = rank
        self._slots: dict[int, tuple[Source, list[Slot]]] = {}  # by the source's id
        self._casts: list[tuple[Slot, torch.Tensor]] = []  # tensors of another dtype that torch converts
        self._settle: dict[str, Callable[[], Any]] = {}  # by item

    def add(self, item: SavedItem, target: Any) -> None:
        """Runs step 1 for an item. Raises Mismatch, NotFound."""
        node = self._own(item.node, target)
        if node is None:
            raise item.refusal or NotFound(f"rank {self._rank} has saved no '{item.name}'", key=item.name)
        self._settle[item.name] = self._select(item, target, node, ())

    def read_values(self) -> None:
        """Runs step 2. Raises UnsafeContent, Corrupt, Mismatch."""
        for source, slots in self._slots.values():
            values = [slot for slot in slots if slot.leaf.dtype is None]
            source.read_values(values)
            for slot in values:
                self._compare(slot.value, slot.target, slot.place)

    def read_tensors(self) -> None:
        """Runs step 3. Raises Corrupt, and errors of the system."""
        for source, slots in self._slots.values():
            source.read_tensors([slot for slot in slots if slot.leaf.dtype is not None])
        for slot, target in self._casts:
            fill(target, slot.value)

    @property
    def size(self) -> int:
        """The bytes of the tensors that this rank has loaded."""
        slots = [slot for _, slots in self._slots.values() for slot in slots if slot.leaf.dtype is not None]
        return sum(_local(slot.value).nbytes for slot in slots if isinstance(slot.value, torch.Tensor))

    def settled(self) -> dict[str, Any]:
        """Runs step 4. Returns the items."""
        return {name: settle() for name, settle in self._settle.items()}

    # --- Step 1 ---

    def _own(self, node: Node | None, target: Any) -> Node | None:
        """Returns the part of this rank in a node that has a value for each rank; None if the rank has none. Without a
        target, the whole node without the parts of other ranks."""
        if not isinstance(node, Branch) or isinstance(target, PerRank) or not node.entries:
            return node
        if not node.is_list and all(isinstance(key, str) and _RANK.fullmatch(key) for key in node.entries):
            return node.entries.get(f"__rank_{self._rank}")
        if target is not None:
            return node
        own = {key: part for key, inner in node.entries.items() if (part := self._own(inner, None)) is not None}
        return Branch(own, node.names, node.is_list, node.has_equal_texts) if own else None

    def _select(self, item: SavedItem, target: Any, node: Node, path: tuple[Any, ...]) -> Callable[[], Any]:
        if isinstance(node, Branch):
            if node.is_list:
                return self._items(item, target, node, path)
            return self._entries(item, target, node, path)
        place = _place(item.name, path)
        if item.refusal is not None and not is_global(target):
            raise item.refusal
        if node.dtype is not None and (target is not None or item.source.holds_parts):
            self._check_tensor(target, node, place, holds_parts=item.source.holds_parts)
        slot = Slot(node, target, place)
        self._slots.setdefault(id(item.source), (item.source, []))[1].append(slot)
        if node.dtype is None:
            return lambda: _merged(slot.value, target)
        if target is not None and self._needs_cast(target, node):
            slot.target = None
            self._casts.append((slot, target))
        return (lambda: slot.value) if target is None else (lambda: target)

    def _entries(self, item: SavedItem, target: Any, branch: Branch, path: tuple[Any, ...]) -> Callable[[], Any]:
        container = {} if target is None else target
        if not isinstance(container, Mapping):
            hint = "load into its state_dict()" if hasattr(target, "load_state_dict") else ""
            raise _mismatch(_place(item.name, path), type(target), dict, hint)
        if target is not None and not target and branch.entries:
            self.ignored[_place(item.name, path)] = sum(1 for _ in branch.leaves())
        names = [branch.name(key) for key in branch.entries] if target is None else list(target)
        parts = []
        for name in names:
            inner = None if target is None else target[name]
            saved = branch.entry(name)
            node = self._own(saved, inner)
            if node is not None:
                parts.append((name, self._select(item, inner, node, (*path, name))))
            elif saved is not None and item.refusal is not None:
                raise item.refusal
            elif target is not None and not (isinstance(inner, Mapping) and not inner):
                self.missing.append(_place(item.name, (*path, name)))

        def settle() -> Any:
            for name, part in parts:
                container[name] = part()  # type: ignore[index]
            return container

        return settle

    def _items(self, item: SavedItem, target: Any, branch: Branch, path: tuple[Any, ...]) -> Callable[[], Any]:
        if target is not None and (not isinstance(target, Sequence) or isinstance(target, _TEXTS)):
            raise _mismatch(_place(item.name, path), type(target), list)
        nodes = list(branch.entries.values())
        given = list(target or [None] * len(nodes))  # an empty list takes all
        parts: list[Callable[[], Any]] = []
        for index, inner in enumerate(given):
            node = self._own(nodes[index], inner) if index < len(nodes) else None
            if node is not None:
                parts.append(self._select(item, inner, node, (*path, index)))
            else:
                self.missing.append(_place(item.name, (*path, index)))
                parts.append(lambda inner=inner: inner)  # type: ignore[misc]
        return lambda: _as_sequence([part() for part in parts], target)

    def _check_tensor(self, target: Any, leaf: Leaf, place: str, *, holds_parts: bool) -> None:
        if target is None:
            return
        if not isinstance(target, torch.Tensor):
            if is_filled_in_place(target) and not holds_parts:
                return
            raise _mismatch(place, type(target), torch.Tensor)
        if holds_parts and isinstance(target, DTensor) is not isinstance(leaf.content, DTensor):
            saved = DTensor if isinstance(leaf.content, DTensor) else torch.Tensor
            raise _mismatch(place, type(target), saved, _GIVE_A_RESHARDER)
        is_part = is_declared_shard(target) and not holds_parts
        shape = tuple(getattr(target, "global_shape") if is_part else target.shape)  # noqa: B009 - not of Tensor
        if shape not in (leaf.shape, leaf.part_shape):
            raise Mismatch(
                f"'{place}': the shape in the checkpoint differs from the target's",
                key=place,
                expected=f"{leaf.part_shape or leaf.shape}",
                actual=f"{shape}",
            )
        if holds_parts and isinstance(target, DTensor) and not _are_sharded_alike(target, leaf.content):
            raise Mismatch(
                f"'{place}': the file of this rank has another shard; {_GIVE_A_RESHARDER}",
                key=place,
                expected=f"placements {leaf.content.placements} on a mesh {tuple(leaf.content.device_mesh.shape)}",
                actual=f"placements {target.placements} on a mesh {tuple(target.device_mesh.shape)}",
            )
        if self._needs_cast(target, leaf) and not cast_allowed(None):
            raise Mismatch(
                f"'{place}': the dtype in the checkpoint differs from the target's; cairn.install(allow_cast=True) "
                f"allows the conversion",
                key=place,
                expected=str(leaf.dtype),
                actual=str(target.dtype),
            )

    @staticmethod
    def _needs_cast(target: Any, leaf: Leaf) -> bool:
        """Returns whether torch must convert the elements: the engine converts floats."""
        if not isinstance(target, torch.Tensor) or target.dtype == leaf.dtype or leaf.dtype is None:
            return False
        return not (target.dtype.is_floating_point and leaf.dtype.is_floating_point)

    # --- Step 2 ---

    def _compare(self, value: Any, target: Any, place: str) -> None:
        """Compares a value with its target, down to the leaves."""
        if target is None:
            return
        if isinstance(value, Mapping) and isinstance(target, Mapping):
            for key, inner in target.items():
                if key in value:
                    self._compare(value[key], inner, f"{place}.{key}")
                else:
                    self.missing.append(f"{place}.{key}")
        elif _is_sequence(value) and _is_sequence(target):
            for index, inner in enumerate(target):
                if index < len(value):
                    self._compare(value[index], inner, f"{place}.{index}")
                else:
                    self.missing.append(f"{place}.{index}")
        elif isinstance(value, torch.Tensor) and isinstance(target, torch.Tensor):
            if isinstance(value, DTensor) is not isinstance(target, DTensor):
                raise _mismatch(place, type(target), type(value), _GIVE_A_RESHARDER)
            if value.shape != target.shape:
                raise Mismatch(
                    f"'{place}': the shape in the checkpoint differs from the target's",
                    key=place,
                    expected=str(tuple(value.shape)),
                    actual=str(tuple(target.shape)),
                )
        elif not (isinstance(value, Set) and isinstance(target, Set)) and not isinstance(target, type(value)):
            raise _mismatch(place, type(target), type(value))


_GIVE_A_RESHARDER = "give the item a resharder: ItemSpec(resharder=DefaultResharder())"


def _are_sharded_alike(target: DTensor, saved: DTensor) -> bool:
    is_same_mesh = tuple(target.device_mesh.shape) == tuple(saved.device_mesh.shape)
    is_same_part = target._local_tensor.shape == saved._local_tensor.shape
    return is_same_mesh and is_same_part and target.placements == saved.placements


# --- Step 4 ---


def _merged(value: Any, target: Any) -> Any:
    """Returns the target with a value put into it, or the value itself where the target is no container."""
    if target is None:
        return value
    if isinstance(value, Mapping):
        for key in [key for key in target if key in value]:
            target[key] = _merged(value[key], target[key])
        return target
    if _is_sequence(value):
        wanted = target or [None] * len(value)
        parts = [_merged(value[i], inner) if i < len(value) else inner for i, inner in enumerate(wanted)]
        return _as_sequence(parts, target, type(value))
    if isinstance(value, torch.Tensor):
        fill(_local(target), _local(value))
        return target
    return value


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _as_sequence(parts: list[Any], target: Any, kind: type = list) -> Any:
    """Returns a list that is filled in place, or a new sequence of the type of the target or of the saved value."""
    if isinstance(target, MutableSequence):
        target[:] = parts
        return target
    if target is None:
        return parts if kind is list else kind(parts)
    return tuple(parts) if type(target) is tuple else type(target)(parts)


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, _TEXTS)


def _place(name: str, path: tuple[Any, ...]) -> str:
    """Returns the key of a place, as torch_checkpointing writes it."""
    return f"{name}::{'.'.join(map(str, path))}" if path else name


def _mismatch(place: str, target: type, saved: type, hint: str = "") -> Mismatch:
    return Mismatch(
        f"'{place}': the type in the checkpoint differs from the target's{hint and '; ' + hint}",
        key=place,
        expected=saved.__name__,
        actual=target.__name__,
    )
