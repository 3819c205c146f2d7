"""Whose state it is: one rank of so many. As ``types`` it has the names of torch's module."""

from dataclasses import dataclass
from typing import Any, TypeAlias

STATE_DICT: TypeAlias = dict[str, Any]


@dataclass
class RankInfo:
    """A rank of the whole job, and how many there are."""

    global_rank: int
    global_world_size: int
