"""SplitKeys: the keys of a load that takes some from a checkpoint and the rest from a base checkpoint."""

import os
from typing import Any

from cairn._directory import existing_place, open_to_load
from cairn._state import per_rank
from cairn._state.flattening import flatten
from cairn._state.key_terms import KeyTerms, LoadedKeys, OpenCheckpoint, RenamedCheckpoint, holder_of
from cairn.errors import InvalidArgument, MissingKey

_NAMED_MAX = 4  # keys that an error names


class SplitKeys:
    """`terms` and `base_terms` are the terms of the two loads; divide() narrows them to disjoint keys."""

    def __init__(self, terms: KeyTerms, base: str | os.PathLike[str], base_renames: Any) -> None:
        self.terms = terms
        self.base = existing_place(base)
        self.base_terms = KeyTerms(strict=terms.strict, renames=base_renames)

    def divide(self, states: dict[str, Any], flattens: bool, directory: str | os.PathLike[str]) -> None:
        """Gives the base the keys that the checkpoint in `directory` lacks. Raises MissingKey, with both directories,
        for keys that both lack, unless the load is not strict."""
        if not flattens:
            raise InvalidArgument("a base checkpoint is for loads that flatten the state dict")
        places = per_rank.keys_of(states)
        keys = [leaf.fqn for leaf in flatten(states) if self.terms.take(leaf.fqn)]
        holds = holder_of(opened(directory, self.terms))
        own = frozenset(key for key in keys if holds(key) or per_rank.is_of_a_rank(key, places))
        rest = [key for key in keys if key not in own]
        in_base = holder_of(opened(self.base, self.base_terms))
        missing = [key for key in rest if not in_base(key)]
        if missing and self.terms.strict:
            more = f" and {len(missing) - _NAMED_MAX} more" if len(missing) > _NAMED_MAX else ""
            raise MissingKey(
                f"Missing key in checkpoint state_dict: {', '.join(missing[:_NAMED_MAX])}{more}; neither the "
                f"checkpoint in '{os.fspath(directory)}' nor the base in '{os.fspath(self.base)}' has it",
                key=missing[0],
                keys=missing,
            )
        self.terms.left_out = frozenset(rest)
        self.base_terms.only = frozenset(rest)

    @staticmethod
    def join(first: LoadedKeys, second: LoadedKeys) -> LoadedKeys:
        """Returns the keys that both lack, and the keys of the first that the state dict lacks."""
        return LoadedKeys([*first.missing, *second.missing], first.unexpected)


def opened(directory: str | os.PathLike[str], terms: KeyTerms) -> OpenCheckpoint:
    """Returns the checkpoint in `directory` by the names of `terms`."""
    native = open_to_load(os.fsencode(directory))
    return RenamedCheckpoint(native, terms.renames) if terms.renames else native
