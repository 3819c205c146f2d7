"""A saved state as a tree, made before any data is read: the places of the entries, and the shapes and dtypes of
tensors.

DCP's flat keys lose keys that are not strings, and empty mappings. An optimizer numbers its parameters, and has an
empty state before its first step. Therefore a rank-local checkpoint of such a state has an additional value under
`SHAPE`: a list of places with the key at each place, and a list of the places of empty mappings. A place is the keys
from the top, as text, and the indices of lists. Readers with a template, DCP among them, do not need the value.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from cairn._state.flattening import Path
from cairn.errors import Corrupt, InvalidArgument

if TYPE_CHECKING:
    import torch

SHAPE = "__cairn_shape__"

_GAPS_MAX = 1 << 16  # of all lists together: the bound of missing indices


@dataclass
class Leaf:
    """An entry; `content` belongs to the source. `dtype` and `shape` describe a tensor; values have no dtype.

    `part_shape`: for a distributed tensor of which a part was saved, the shape of the part.
    """

    key: str
    content: Any
    dtype: "torch.dtype | None" = None
    shape: tuple[int, ...] = ()
    part_shape: tuple[int, ...] | None = None


@dataclass
class Branch:
    """A mapping, by its keys as text, or a list, by its indices. `has_equal_texts`: two keys have one text, and
    `entries` has the keys themselves."""

    entries: "dict[str | int, Node]" = field(default_factory=dict)
    names: dict[str | int, Any] = field(default_factory=dict)  # keys that are not text, by their text
    is_list: bool = False
    has_equal_texts: bool = False

    def entry(self, key: Any) -> "Node | None":
        """Returns what a mapping has under a key of a template."""
        return self.entries.get(key if self.has_equal_texts else str(key))

    def name(self, key: str | int) -> Any:
        """Returns the original key."""
        return self.names.get(key, key)

    def branches(self) -> Iterator["Branch"]:
        """Yields this branch and all branches below."""
        waiting = [self]
        while waiting:
            branch = waiting.pop()
            yield branch
            waiting += [node for node in branch.entries.values() if isinstance(node, Branch)]

    def leaves(self) -> Iterator[Leaf]:
        """Yields the leaves of this branch and of all branches below."""
        for branch in self.branches():
            yield from (node for node in branch.entries.values() if isinstance(node, Leaf))

    def as_containers(self) -> dict[Any, Any]:
        """Returns the contents of the leaves in new dicts and lists."""
        whole: dict[Any, Any] = {}
        waiting: list[tuple[Branch, Any]] = [(self, whole)]
        while waiting:
            branch, container = waiting.pop()
            for step, node in branch.entries.items():
                made: Any = node.content if isinstance(node, Leaf) else [] if node.is_list else {}
                if isinstance(node, Branch):
                    waiting.append((node, made))
                if branch.is_list:
                    container.append(made)
                else:
                    container[branch.name(step)] = made
        return whole


Node: TypeAlias = Leaf | Branch


class Slot:
    """A selected leaf; `value` is the result. `target`: the template's object, None if the template has none."""

    def __init__(self, leaf: Leaf, target: Any, place: str) -> None:
        self.leaf = leaf
        self.target = target
        self.place = place
        self.value: Any = None


class NestedShape(NamedTuple):
    """`names`: keys that are not strings, by place. `empty`: the places of empty mappings."""

    names: dict[Path, Any]
    empty: list[Path]


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
        gaps = 0
        for path, branch in self.branches.items():
            numbers = [key for key in branch.entries if isinstance(key, int)]
            if not numbers:
                continue
            count = max(numbers) + 1
            gaps += count - len(numbers)
            if len(numbers) < len(branch.entries) or min(numbers) < 0 or gaps > _GAPS_MAX or not path:
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


def selected(tree: Branch, selects: Callable[[str], bool]) -> Branch:
    """Returns the tree without the leaves whose flat keys `selects` refuses. A list with a selected leaf stays whole.

    Calls `selects` with every key.
    """
    kept = Branch(names=tree.names)
    waiting = [("", tree, kept)]
    inner_branches: list[tuple[Branch, str | int, Branch]] = []  # with the branch above, and the place there
    while waiting:
        place, branch, copy = waiting.pop()
        for step, node in branch.entries.items():
            key = f"{place}{step}"
            if isinstance(node, Branch) and node.entries and not node.is_list:
                inner = Branch(names=node.names)
                waiting.append((f"{key}.", node, inner))
                copy.entries[step] = inner
                inner_branches.append((copy, step, inner))
            elif sum(map(selects, _keys_of(key, node))):
                copy.entries[step] = node
    for above, step, inner in reversed(inner_branches):
        if not inner.entries:
            del above.entries[step]
    return kept


def _keys_of(key: str, node: Node) -> Iterator[str]:
    """Yields the flat keys of the leaves at and below a node."""
    waiting = [(key, node)]
    while waiting:
        place, part = waiting.pop()
        if isinstance(part, Leaf):
            yield place
        else:
            waiting += [(f"{place}.{step}", inner) for step, inner in part.entries.items()]


def number_parameters(tree: Branch) -> None:
    """Makes integers of the keys in the states of torch's optimizers, which number their parameters.

    DCP has the numbers as text. ``Optimizer.load_state_dict`` would take no state under a text for a parameter's.
    """
    for branch in tree.branches():
        state, groups = branch.entries.get("state"), branch.entries.get("param_groups")
        if not isinstance(state, Branch) or not isinstance(groups, Branch) or not groups.is_list or state.names:
            continue
        have_parameters = all(
            isinstance(group, Branch) and "params" in group.entries for group in groups.entries.values()
        )
        texts = [step for step in state.entries if isinstance(step, str)]
        if have_parameters and len(texts) == len(state.entries) and all(map(_is_number, texts)):
            state.names = {text: int(text) for text in texts}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and (text == "0" or text[0] != "0")


def with_shape(state_dict: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Returns `state_dict` with an entry for the lost parts, if any. Copies no values."""
    if SHAPE in state_dict:
        raise InvalidArgument(f"the key '{SHAPE}' is reserved for Cairn: rename the entry", key=SHAPE)
    shape = _shape_of(state_dict)
    if not shape.names and not shape.empty:
        return state_dict
    return {**state_dict, SHAPE: (list(shape.names.items()), shape.empty)}


def shape_in(saved: Any) -> NestedShape:
    """Returns the NestedShape of the value under `SHAPE`. Raises Corrupt."""
    try:
        names, empty, *_ = saved  # a conversion adds the positions of the empty mappings
        shape = NestedShape({_place(place): key for place, key in names}, [_place(place) for place in empty])
        hash(tuple(shape.names.values()))
    except (TypeError, ValueError) as error:
        raise Corrupt(f"the value under '{SHAPE}' is not what Cairn writes there", key=SHAPE) from error
    return shape


def _place(saved: Any) -> Path:
    place = tuple(saved)
    if not place or any(type(step) not in (str, int) for step in place):
        raise ValueError("no place")
    return place


def _shape_of(state_dict: Mapping[Any, Any]) -> NestedShape:
    shape = NestedShape({}, [])
    waiting: list[tuple[Path, Any, frozenset[int]]] = [((), state_dict, frozenset())]
    while waiting:
        place, container, above = waiting.pop()
        if id(container) in above:
            continue  # the save refuses a state that contains itself
        is_list = isinstance(container, list)
        for key, value in enumerate(container) if is_list else container.items():
            is_odd = not is_list and type(key) is not str and _is_plain(key)
            is_nested = isinstance(value, (Mapping, list))
            if not is_odd and not is_nested:
                continue
            here = (*place, key if is_list else str(key))
            if is_odd:
                shape.names[here] = key
            if is_nested and value:
                waiting.append((here, value, above | {id(container)}))
            elif isinstance(value, Mapping):
                shape.empty.append(here)
    return shape


def _is_plain(key: Any) -> bool:
    """Returns whether a key can be read back without running code. All remaining keys are read back as text."""
    if isinstance(key, tuple):
        return type(key) is tuple and all(type(part) is str or _is_plain(part) for part in key)
    return key is None or type(key) in (bool, int, float)
