"""The newest local checkpoint that all ranks can load, on which the ranks agree.

1. Each rank names the parts that it holds (one all-gather). A save is complete if the part of each rank is held by some
   rank. The newest complete save is the candidate.
2. Each rank reads and checks its own part of the candidate, and its replicas of parts that their own ranks lack.
3. The ranks name the damaged parts (one all-gather) and drop these parts. If a part was dropped, the ranks choose the
   candidate again from the parts that are left: a replica replaces the part, or an earlier save becomes the candidate.

Every rank gets the same names in step 3 and takes the same decision. Each round drops a part; therefore the search
ends.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from cairn._ranks.ranks import Ranks
from cairn.errors import Corrupt
from cairn.nvrx.local.parts import Part


class Save(NamedTuple):
    """The iteration and the attempt of a save."""

    iteration: int
    attempt: str


class Newest(NamedTuple):
    """A save, and for each rank the parts of the save that the rank holds undamaged, as far as a load needs them."""

    save: Save
    held: list[set[Part]]


def newest_save(ranks: Ranks, mine: Collection[Part], is_whole: Callable[[Part], bool]) -> Newest | None:
    """Returns the newest save that can be loaded; None if there is none. All ranks call this.

    `mine`: the parts that this rank holds and may give to others. `is_whole` reads a part and returns whether all its
    bytes are undamaged; it raises nothing.
    """
    held = [set(parts) for parts in exchanged(ranks, mine)]
    checked: set[Part] = set()
    while (save := _newest_complete(held)) is not None:
        wanted = {
            part
            for rank, parts in enumerate(held)
            for part in parts
            if Save(part.iteration, part.attempt) == save and (part.rank == rank or part not in held[part.rank])
        }
        new = (wanted & held[ranks.rank]) - checked
        damaged = [part for part in sorted(new) if not is_whole(part)]
        checked |= new
        found = exchanged(ranks, damaged)
        if not any(found):
            kept = [{part for part in parts if Save(part.iteration, part.attempt) == save} for parts in held]
            return Newest(save, [parts & wanted for parts in kept])
        for parts, gone in zip(held, found, strict=True):
            parts -= set(gone)
    return None


def _newest_complete(held: list[set[Part]]) -> Save | None:
    owners: dict[Save, set[int]] = defaultdict(set)
    for part in set[Part]().union(*held):
        if part.ranks == len(held):
            owners[Save(part.iteration, part.attempt)].add(part.rank)
    return max((save for save, ranks in owners.items() if len(ranks) == len(held)), default=None)


def is_complete(ranks: Ranks, mine: Iterable[Part], save: Save) -> bool:
    """Whether the parts of all ranks were committed. All ranks call this; no bytes of the parts are read."""
    ours = [part for part in mine if Save(part.iteration, part.attempt) == save]
    owners = {part.rank for parts in exchanged(ranks, ours) for part in parts}
    return len(owners) == ranks.count


def exchanged(ranks: Ranks, parts: Iterable[Part]) -> list[list[Part]]:
    """Returns the parts that each rank names."""
    message = json.dumps(sorted(parts)).encode()
    messages = ranks.options["collectives"].all_gather(message) if ranks.are_many else [message]
    return [[_part(fields) for fields in json.loads(text)] for text in messages]


def _part(fields: list[object]) -> Part:
    part = Part(*fields)  # type: ignore[arg-type]
    if Part.of(part.directory) != part:
        raise Corrupt("a rank names a part that can't be", actual=str(fields)[:200])
    return part
