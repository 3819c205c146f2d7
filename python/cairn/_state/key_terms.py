"""KeyTerms: which keys a load takes, by which names, and whether each must be in the checkpoint.

RenamedCheckpoint: an open checkpoint whose keys have the names that a load's ``renames`` give them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from cairn import _engine
from cairn._state.flattening import Path, Rules, flatten, saved_keys
from cairn.errors import InvalidArgument, MissingKey

Renames: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]


class LoadedKeys(NamedTuple):
    """The result of a load with ``strict=False``, on this rank."""

    missing: list[str]
    """The keys of the state dict that the checkpoint lacks, in the order of the state dict; they are unchanged."""
    unexpected: list[str]
    """The keys of the checkpoint that the state dict lacks, by their names after `renames`; with `keys` of the call
    only those that `keys` selects."""


class KeyTerms:
    """The terms of a load, as of ``cairn.load``. Raises InvalidArgument for a text in place of a list."""

    def __init__(self, *, strict: bool = True, renames: Renames = (), keys: Iterable[str] = ()) -> None:
        if isinstance(keys, str):
            raise InvalidArgument("keys must be a list of patterns, not a string", actual=repr(keys))
        if isinstance(renames, str):
            raise InvalidArgument("renames must be a mapping or pairs of names", actual=repr(renames))
        self.strict = strict
        self.renames = list(renames.items()) if isinstance(renames, Mapping) else [(old, new) for old, new in renames]
        self.patterns = list(keys)
        self.only: frozenset[str] | None = None  # no other keys of the state dict
        self.left_out: frozenset[str] = frozenset()

    @property
    def are_dcps(self) -> bool:
        """Whether the load takes keys as DCP does."""
        return self.strict and not self.renames and not self.selects

    @property
    def selects(self) -> bool:
        """Whether some keys of the state dict may be left out."""
        return bool(self.patterns or self.left_out) or self.only is not None

    def take(self, key: str) -> bool:
        """Returns whether the load takes `key`, a name of the state dict, or what lies below."""
        if key in self.left_out or (self.only is not None and key not in self.only):
            return False
        return not self.patterns or any(_engine.matches_key(pattern, key) for pattern in self.patterns)

    def selected(
        self, state_dict: Mapping[Any, Any], rules: Rules, checkpoint: "OpenCheckpoint"
    ) -> frozenset[str] | None:
        """Returns the keys of the state dict that the load takes; None: all.

        Raises MissingKey if a pattern matches no key of the state dict and none of the checkpoint.
        """
        if not self.selects:
            return None
        keys = [leaf.fqn for leaf in flatten(state_dict, rules)]
        for pattern in self.patterns:
            if any(_engine.matches_key(pattern, key) for key in keys):
                continue
            if not any(_engine.matches_key(pattern, key) for key, *_ in saved_keys(checkpoint)):
                raise MissingKey(
                    f"no key matches the pattern '{pattern}', neither in the state dict nor in the checkpoint",
                    key=pattern,
                )
        return frozenset(key for key in keys if self.take(key))


class RenamedCheckpoint:
    """The keys of an open checkpoint by new names. Only for what a load asks before it plans: the engine's own calls
    take `native` and the renames."""

    def __init__(self, native: _engine.Checkpoint, renames: Iterable[tuple[str, str]]) -> None:
        self.native = native
        self._stored = dict(native.renamed_keys(list(renames)))

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, key: str) -> bool:
        return key in self._stored

    def holds_any(self, keys: list[str]) -> bool:
        """As of _engine.Checkpoint."""
        return any(key in self._stored for key in keys)

    def tensor(self, key: str) -> Any:
        """As of _engine.Checkpoint."""
        return self.native.tensor(self._stored[key]) if key in self._stored else None

    def tensor_form(self, key: str) -> tuple[int, tuple[int, ...]] | None:
        """As of _engine.Checkpoint."""
        return self.native.tensor_form(self._stored[key]) if key in self._stored else None

    def key_stream(self) -> "_RenamedKeys":
        """As of _engine.Checkpoint."""
        return _RenamedKeys(self.native.key_stream(), {stored: name for name, stored in self._stored.items()})

    def paths(self) -> dict[str, Path]:
        """Returns the recorded paths of the keys that keep their names."""
        recorded = _engine.catalog_of(self.native).paths()
        return {key: recorded[key] for key, stored in self._stored.items() if key == stored and key in recorded}


class _RenamedKeys:
    def __init__(self, stream: _engine.KeyStream, names: Mapping[str, str]) -> None:
        self._stream = stream
        self._names = names

    def next(self) -> list[tuple[str, int | None, tuple[int, ...] | None]]:
        return [(self._names[key], code, shape) for key, code, shape in self._stream.next()]


OpenCheckpoint: TypeAlias = _engine.Checkpoint | RenamedCheckpoint


def holder_of(checkpoint: OpenCheckpoint) -> Callable[[str], bool]:
    """Returns a function that says whether the checkpoint has a key. The function decodes the whole metadata."""
    if isinstance(checkpoint, RenamedCheckpoint):
        return checkpoint.__contains__
    return _engine.catalog_of(checkpoint).__contains__


def paths_of(checkpoint: OpenCheckpoint) -> dict[str, Path]:
    """Returns the paths of the keys in the nested state, as far as the checkpoint records them."""
    if isinstance(checkpoint, RenamedCheckpoint):
        return checkpoint.paths()
    return _engine.catalog_of(checkpoint).paths()


def unexpected_keys(checkpoint: OpenCheckpoint, present: frozenset[str], terms: KeyTerms) -> Iterator[str]:
    """Yields the keys of the checkpoint that the load would take and that the state dict lacks."""
    for key, *_ in saved_keys(checkpoint):
        if key not in present and terms.take(key):
            yield key
