"""How many processes take part, and what they were asked to plan with."""

from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

from cairn.errors import Unsupported


def require_one_process(process_group: Any, no_dist: bool) -> None:
    """Raises Unsupported if a process group of several ranks would have to save or load together."""
    if no_dist or not dist.is_available() or not dist.is_initialized():
        return
    ranks = dist.get_world_size(process_group)
    if ranks > 1:
        raise Unsupported(f"saving and loading by many ranks is not built yet: this process group has {ranks}")


def save_planner_flattens(planner: object | None) -> bool:
    """Whether nested containers are taken apart. Raises Unsupported for planners that are not DCP's default one."""
    if planner is None:
        return True
    if type(planner) is not DefaultSavePlanner:
        raise Unsupported(f"save planners of class {_name(planner)} are not supported yet")
    return planner.flatten_state_dict


def load_planner_options(planner: object | None) -> tuple[bool, bool]:
    """Whether nested containers are taken apart, and whether keys may be missing. Raises like save_planner_flattens."""
    if planner is None:
        return True, False
    if type(planner) is not DefaultLoadPlanner:
        raise Unsupported(f"load planners of class {_name(planner)} are not supported yet")
    return planner.flatten_state_dict, planner.allow_partial_load


def _name(instance: object) -> str:
    return f"{type(instance).__module__}.{type(instance).__qualname__}"
