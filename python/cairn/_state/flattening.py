"""Flat keys: of a nested state dict, by the rules of DCP, and of an open checkpoint. The engine does the walk, for
states of many thousand tensors.

Since torch 2.4 every mapping is flattened, a list only if its nested lists hold a tensor or a mapping, a tuple never.
Until torch 2.3 a container without any tensor stayed whole. Keys of mappings become strings.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from cairn import _engine

Path = tuple[str | int, ...]
Rules = _engine.FlatteningRules


class Leaf(NamedTuple):
    """A value that is stored under its own key: its path, and its place `container[place]`."""

    path: Path
    value: Any
    container: Any
    place: Any

    @property
    def fqn(self) -> str:
        """The flat key."""
        return ".".join(map(str, self.path))


def flatten(state_dict: Mapping[Any, Any], rules: Rules = Rules.TORCH_2_4) -> list[Leaf]:
    """Returns the leaves in the order of torch 2.4 and later, with the names of `rules`; with ``Rules.TOP_LEVEL`` the
    entries themselves. Raises InvalidArgument for a state dict that contains itself."""
    return _engine.flatten(state_dict, rules, Leaf)


class _HasKeys(Protocol):
    def key_stream(self) -> Any: ...


def saved_keys(checkpoint: _HasKeys) -> Iterator[tuple[str, int | None, tuple[int, ...] | None]]:
    """Yields every key of an open checkpoint, with the dtype code and the shape of a tensor. Reads some keys at a time:
    the names of a large checkpoint take gigabytes."""
    stream = checkpoint.key_stream()
    while summaries := stream.next():
        yield from summaries
