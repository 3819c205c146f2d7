"""The rank that owns a state. Also importable under torch's module name ``types``."""

from dataclasses import dataclass
from typing import Any, TypeAlias

STATE_DICT: TypeAlias = dict[str, Any]


@dataclass
class RankInfo:
    """A rank of the whole job, and the number of ranks."""

    global_rank: int
    global_world_size: int
