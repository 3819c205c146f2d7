"""The match of a template with a saved state, decided and checked as far as possible before data is read.

1. The template and the tree of the saved state are walked together (:class:`Selection`). The template's mappings select
   entries; None selects everything below. Keys that the checkpoint lacks are recorded and left unchanged.
2. Values are read, and compared with the types in the template.
3. Tensors are read: into the template's tensors, or into new tensors.
4. Everything is put into place (:meth:`Selection.settle`): mappings of the template are changed in place, lists are
   made anew.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch

from cairn._state.saved_tree import Branch, Leaf, Node, Slot
from cairn.checkpoint import Verify
from cairn.errors import InvalidArgument


class Reading(NamedTuple):
    """The options of a call of ``CheckpointReader.read``."""

    place: Callable[[torch.Tensor], torch.Tensor]  # moves a new tensor from the CPU to the requested device
    map_location: Any
    allow_pickle: bool
    verify: Verify


def placement(map_location: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns `Reading.place`. `map_location` is as in ``torch.load``: None, a device, a device's name, a dict, or a
    function."""
    if map_location is None:
        return lambda tensor: tensor
    if isinstance(map_location, dict):
        target = map_location.get("cpu", "cpu")
        return lambda tensor: tensor.to(target)
    if isinstance(map_location, (str, torch.device)):
        return lambda tensor: tensor.to(map_location)
    if not callable(map_location):
        raise TypeError(f"map_location is a device, its name, a dict or a function, not {type(map_location).__name__}")

    def by_function(tensor: torch.Tensor) -> torch.Tensor:
        storage = map_location(tensor.untyped_storage(), "cpu")
        return tensor if storage is None else tensor.to(storage.device)

    return by_function


class Mismatch(InvalidArgument, RuntimeError):
    """The template differs from the checkpoint in type, shape or dtype. (torch raises RuntimeError.)"""


class _Entries:
    def __init__(self, container: Any, parts: "list[tuple[Any, _Part]]") -> None:
        self.container = container
        self.parts = parts


_Part: TypeAlias = "Slot | _Entries | list[_Part]"


class Selection:
    """Runs step 1 for `template` (None: everything). Raises Mismatch."""

    def __init__(self, template: Any, tree: Node) -> None:
        self.missing: list[str] = []  # keys of the template that the checkpoint lacks
        self.ignored: dict[str, int] = {}  # places of empty mappings in the template, and the number of keys below
        self._slots: list[Slot] = []
        self._whole = self._select(template, tree, "")

    @property
    def values(self) -> list[Slot]:
        """The slots of step 2: the source sets each slot's `value`."""
        return [slot for slot in self._slots if slot.leaf.dtype is None]

    @property
    def tensors(self) -> list[Slot]:
        """As `values`, for step 3."""
        return [slot for slot in self._slots if slot.leaf.dtype is not None]

    def check_values(self) -> None:
        """Ends step 2. Raises Mismatch."""
        for slot in self.values:
            if slot.target is not None and not isinstance(slot.target, type(slot.value)):
                raise _mismatch(slot.place, type(slot.target), type(slot.value))

    def settle(self) -> Any:
        """Runs step 4. Returns the template, or the new state without a template."""
        return _settled(self._whole)

    def _select(self, target: Any, node: Node, place: str) -> _Part:
        if isinstance(node, Branch):
            return self._items(target, node, place) if node.is_list else self._entries(target, node, place)
        if node.dtype is not None and target is not None:
            _check_tensor(target, node, place)
        slot = Slot(node, target, place)
        self._slots.append(slot)
        return slot

    def _entries(self, target: Any, branch: Branch, place: str) -> _Part:
        if target is None:
            nodes = branch.entries.items()
            return _Entries(
                {}, [(branch.name(key), self._select(None, node, _below(place, key))) for key, node in nodes]
            )
        if not isinstance(target, Mapping):
            raise _mismatch(place, type(target), dict)
        if not target and branch.entries:
            self.ignored[place] = sum(1 for _ in branch.leaves())
        found = []
        for key, value in target.items():
            node = branch.entry(key)
            if node is None:
                self.missing.append(_below(place, key))
            else:
                found.append((key, self._select(value, node, _below(place, key))))
        return _Entries(target, found)

    def _items(self, target: Any, branch: Branch, place: str) -> _Part:
        if target is not None and not isinstance(target, list):
            raise _mismatch(place, type(target), list)
        wanted = target or []
        nodes = list(branch.entries.values())
        if len(wanted) > len(nodes):
            raise Mismatch(
                f"'{place}': the template's list is longer than the saved list",
                key=place,
                expected=f"at most {len(nodes)} items",
                actual=str(len(wanted)),
            )
        items = [*wanted, *[None] * (len(nodes) - len(wanted))]
        return [self._select(items[i], node, f"{place}[{i}]") for i, node in enumerate(nodes)]


def _settled(part: _Part) -> Any:
    if isinstance(part, Slot):
        return part.value
    if isinstance(part, list):
        return [_settled(item) for item in part]
    for key, inner in part.parts:
        part.container[key] = _settled(inner)
    return part.container


def _check_tensor(target: Any, leaf: Leaf, place: str) -> None:
    if not isinstance(target, torch.Tensor):
        raise _mismatch(place, type(target), torch.Tensor)
    shape = tuple(target.shape)
    if shape not in (leaf.shape, leaf.part_shape) or target.dtype != leaf.dtype:
        raise Mismatch(
            f"'{place}': shape or dtype of the checkpoint differs from the template",
            key=place,
            expected=f"{leaf.part_shape or leaf.shape} {leaf.dtype}",
            actual=f"{shape} {target.dtype}",
        )


def _mismatch(place: str, target: type, saved: type) -> Mismatch:
    return Mismatch(
        f"'{place}': the type in the checkpoint differs from the template",
        key=place,
        expected=saved.__name__,
        actual=target.__name__,
    )


def _below(place: str, key: object) -> str:
    return f"{place}.{key}" if place else str(key)
