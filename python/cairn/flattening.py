"""From a nested state dict to flat keys, by the rules of DCP, written for many thousands of tensors.

Since torch 2.4 every mapping is taken apart; a list only if there is a tensor or a mapping somewhere in its lists; a
tuple never. Until 2.3 a container without any tensor in it stayed whole. Keys of mappings become strings.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from cairn.errors import InvalidArgument

Path = tuple[str | int, ...]


class Leaf(NamedTuple):
    """A value that is stored under a key of its own: where it sits, and `container[place]`, which holds it."""

    path: Path
    value: Any
    container: Any
    place: Any

    @property
    def fqn(self) -> str:
        """The flat key."""
        return ".".join(map(str, self.path))


# Types that are never containers, to be told apart from those without the slow test for Mapping.
_LEAF_TYPES = frozenset(
    {torch.Tensor, torch.nn.Parameter, int, float, bool, str, bytes, complex, type(None), tuple, set, torch.Size}
)


def flatten(state_dict: Mapping[Any, Any]) -> list[Leaf]:
    """The leaves in the order of torch 2.4 and later. Raises InvalidArgument for a state dict that contains itself."""
    leaves: list[Leaf] = []
    _guarded(_walk, (), state_dict, leaves)
    return leaves


def flatten_as_2_3(state_dict: Mapping[Any, Any]) -> list[Leaf]:
    """The leaves as torch 2.3 and earlier named them."""
    leaves: list[Leaf] = []
    _guarded(_walk_as_2_3, (), state_dict, leaves)
    return leaves


def top_level(state_dict: Mapping[Any, Any]) -> list[Leaf]:
    """The entries as they are, for ``flatten_state_dict=False``."""
    return [Leaf((str(key),), value, state_dict, key) for key, value in state_dict.items()]


def _guarded(
    walk: Callable[[Path, Mapping[Any, Any], list[Leaf]], None],
    path: Path,
    state_dict: Mapping[Any, Any],
    leaves: list[Leaf],
) -> None:
    try:
        walk(path, state_dict, leaves)
    except RecursionError:
        raise InvalidArgument("the state dict contains itself, or is nested too deeply") from None


def _walk(path: Path, mapping: Mapping[Any, Any], leaves: list[Leaf]) -> None:
    for key, value in mapping.items():
        here = (*path, str(key))
        if type(value) in _LEAF_TYPES:
            leaves.append(Leaf(here, value, mapping, key))
        else:
            _walk_value(here, value, mapping, key, leaves)


def _walk_value(path: Path, value: Any, container: Any, place: Any, leaves: list[Leaf]) -> None:
    if isinstance(value, Mapping):
        _walk(path, value, leaves)
    elif isinstance(value, list) and not _stays_whole(value):
        for i, item in enumerate(value):
            _walk_value((*path, i), item, value, i, leaves)
    else:
        leaves.append(Leaf(path, value, container, place))


def _stays_whole(items: list[Any]) -> bool:
    for item in items:
        kind = type(item)
        if kind is torch.Tensor:
            return False
        if kind in _LEAF_TYPES and kind is not torch.nn.Parameter:
            continue
        if isinstance(item, (torch.Tensor, Mapping)) or (isinstance(item, list) and not _stays_whole(item)):
            return False
    return True


def _walk_as_2_3(path: Path, mapping: Mapping[Any, Any], leaves: list[Leaf]) -> None:
    for key, value in mapping.items():
        _walk_value_as_2_3((*path, str(key)), value, mapping, key, leaves)


def _walk_value_as_2_3(path: Path, value: Any, container: Any, place: Any, leaves: list[Leaf]) -> None:
    if not _holds_tensor(value):
        leaves.append(Leaf(path, value, container, place))
    elif isinstance(value, Mapping):
        _walk_as_2_3(path, value, leaves)
    else:
        for i, item in enumerate(value):
            _walk_value_as_2_3((*path, i), item, value, i, leaves)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list):
        return False
    return any(isinstance(item, torch.Tensor) or _holds_tensor(item) for item in value)
