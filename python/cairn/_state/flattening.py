"""From a nested state dict to flat keys, by the rules of DCP: the engine walks through many thousands of tensors.

Since torch 2.4 every mapping is taken apart; a list only if there is a tensor or a mapping somewhere in its lists; a
tuple never. Until 2.3 a container without any tensor in it stayed whole. Keys of mappings become strings.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from cairn import _engine

Path = tuple[str | int, ...]
Rules = _engine.FlatteningRules


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


def flatten(state_dict: Mapping[Any, Any]) -> list[Leaf]:
    """The leaves in the order of torch 2.4 and later. Raises InvalidArgument for a state dict that contains itself."""
    return _engine.flatten(state_dict, Rules.TORCH_2_4, Leaf)


def flatten_as_2_3(state_dict: Mapping[Any, Any]) -> list[Leaf]:
    """The leaves as torch 2.3 and earlier named them."""
    return _engine.flatten(state_dict, Rules.TORCH_2_3, Leaf)


def top_level(state_dict: Mapping[Any, Any]) -> list[Leaf]:
    """The entries as they are, for ``flatten_state_dict=False``."""
    return _engine.flatten(state_dict, Rules.TOP_LEVEL, Leaf)
