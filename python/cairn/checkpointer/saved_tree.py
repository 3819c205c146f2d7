"""A saved state as a tree, made before any data is read: the places of the entries, and the shapes and dtypes of
tensors."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from cairn._state.flattening import Path
from cairn.checkpointer.nested_shape import NestedShape
from cairn.errors import Corrupt

_GAPS_MAX = 1 << 16  # of a list: the bound of missing indices


@dataclass
class Leaf:
    """An entry; `content` belongs to the source. `dtype` and `shape` describe a tensor; values have no dtype.

    `part_shape`: for a distributed tensor of which a part was saved, the shape of the part.
    """

    key: str
    content: Any
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()
    part_shape: tuple[int, ...] | None = None


@dataclass
class Branch:
    """A mapping, by its keys as text, or a list, by its indices."""

    entries: "dict[str | int, Node]" = field(default_factory=dict)
    names: dict[str | int, Any] = field(default_factory=dict)  # keys that are not text, by their text
    is_list: bool = False

    def name(self, key: str | int) -> Any:
        """Returns the original key."""
        return self.names.get(key, key)


Node: TypeAlias = Leaf | Branch


def tree_of_paths(leaves: Iterable[tuple[Path, Leaf]], shape: NestedShape) -> Branch:
    """Returns the tree of leaves at the given paths. Raises Corrupt if the paths form no tree."""
    tree = _Growing()
    for path, leaf in leaves:
        tree.add(path, leaf, leaf.key)
    for path in shape.empty:
        tree.add(path, Branch(), ".".join(map(str, path)))
    for path, key in shape.names.items():
        above = tree.branches.get(path[:-1])
        if above is not None and path[-1] in above.entries:
            above.names[path[-1]] = key
    tree.see_what_are_lists()
    return tree.branches[()]


class _Growing:
    def __init__(self) -> None:
        self.branches: dict[Path, Branch] = {(): Branch()}

    def add(self, path: Path, node: Node, key: str) -> None:
        """Adds a node. `key` is for the errors."""
        if not path:
            raise Corrupt(f"the metadata has no place for '{key}'", key=key)
        branch = self._branch(path[:-1], key)
        if path[-1] in branch.entries:
            raise Corrupt(f"the metadata has two entries at the place of '{key}'", key=key)
        branch.entries[path[-1]] = node

    def see_what_are_lists(self) -> None:
        """Turns branches with numbers as keys into lists. DCP leaves out empty mappings: a missing index stands for an
        empty mapping."""
        for path, branch in self.branches.items():
            numbers = [key for key in branch.entries if isinstance(key, int)]
            if not numbers:
                continue
            count = max(numbers) + 1
            if len(numbers) < len(branch.entries) or min(numbers) < 0 or count - len(numbers) > _GAPS_MAX or not path:
                where = ".".join(map(str, path))
                raise Corrupt(
                    f"the entries of the metadata below '{where}' form neither a list nor a mapping", key=where
                )
            branch.entries = {i: branch.entries.get(i, Branch()) for i in range(count)}
            branch.is_list = True

    def _branch(self, path: Path, key: str) -> Branch:
        depth = len(path)
        while path[:depth] not in self.branches:
            depth -= 1
        branch = self.branches[path[:depth]]
        for end in range(depth, len(path)):
            if path[end] in branch.entries:
                raise Corrupt(f"the metadata has '{key}' below an entry that is not a container", key=key)
            inner = Branch()
            branch.entries[path[end]] = inner
            self.branches[path[: end + 1]] = branch = inner
        return branch


def tree_of_value(value: Any, key: str) -> Node:
    """Returns the tree of a state in memory. Raises RecursionError for a state that contains itself."""
    if isinstance(value, Mapping):
        texts = [str(name) for name in value]
        unique = texts if len(set(texts)) == len(texts) else list(value)
        entries = {
            text: tree_of_value(part, f"{key}.{name}" if key else str(name))
            for text, (name, part) in zip(unique, value.items(), strict=True)
        }
        return Branch(entries, dict(zip(unique, value, strict=True)))
    if isinstance(value, list):
        return Branch({i: tree_of_value(part, f"{key}[{i}]") for i, part in enumerate(value)}, is_list=True)
    if isinstance(value, torch.Tensor):
        return Leaf(key, value, value.dtype, tuple(value.shape))
    return Leaf(key, value)
